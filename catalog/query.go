package catalog

import (
	"bytes"
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// read calls f with the state once it contains everything committed before the call. When read
// returns, the Observer has been told of everything that f saw; so a caller that learns of a size
// from read can rely on the data plane knowing it too.
func (c *Catalog) read(ctx context.Context, op string, f func(*state) error) error {
	return c.readAfter(ctx, op, c.sync, f)
}

// readAfter is read with another function that waits for what was committed.
func (c *Catalog) readAfter(ctx context.Context, op string, sync func(context.Context) error, f func(*state) error) error {
	if err := sync(ctx); err != nil {
		return named(op, err)
	}
	c.mu.RLock()
	err := f(c.mu.state)
	seen := c.mu.state.applied
	c.mu.RUnlock()
	if werr := c.progress.wait(ctx, c.life, seen, 0); werr != nil {
		return named(op, werr)
	}
	return named(op, err)
}

// Lookup returns the inode that has the name in dir.
func (c *Catalog) Lookup(ctx context.Context, dir dsm.Ino, name string) (n dsm.Inode, err error) {
	err = c.read(ctx, "lookup", func(s *state) error {
		d, err := s.dir(dir)
		if err != nil {
			return err
		}
		in, err := s.child(d, name)
		if err == nil {
			n = in.Inode
		}
		return err
	})
	return n, err
}

// Getattr returns the inode.
func (c *Catalog) Getattr(ctx context.Context, ino dsm.Ino) (n dsm.Inode, err error) {
	get := func(s *state) error {
		in, err := s.get(ino)
		if err == nil {
			n = in.Inode
		}
		return err
	}
	if err = c.read(ctx, "getattr", get); err == nil && n.Nlink == 0 {
		err = c.readAfter(ctx, "getattr", c.ask, get) // leases do not cover the end of the last claim
	}
	return n, err
}

// LookupKnown is Lookup in the state that this node has applied. It asks nobody.
func (c *Catalog) LookupKnown(dir dsm.Ino, name string) (dsm.Inode, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	d, err := c.mu.state.dir(dir)
	if err != nil {
		return dsm.Inode{}, named("lookup", err)
	}
	in, err := c.mu.state.child(d, name)
	if err != nil {
		return dsm.Inode{}, named("lookup", err)
	}
	return in.Inode, nil
}

// GetattrKnown is Getattr in the state that this node has applied. It asks nobody.
func (c *Catalog) GetattrKnown(ino dsm.Ino) (dsm.Inode, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	in, err := c.mu.state.get(ino)
	if err != nil {
		return dsm.Inode{}, named("getattr", err)
	}
	return in.Inode, nil
}

// ReadDir returns the entries of dir by name, without . and ..
func (c *Catalog) ReadDir(ctx context.Context, dir dsm.Ino) (entries []dsm.DirEntry, err error) {
	err = c.read(ctx, "readdir", func(s *state) error {
		d, err := s.dir(dir)
		if err == nil {
			entries = s.list(d)
		}
		return err
	})
	return entries, err
}

// Stat returns the inodes of entries of dir. One is zero if the name does not belong to the entry's
// inode any more.
func (c *Catalog) Stat(ctx context.Context, dir dsm.Ino, entries []dsm.DirEntry) (inodes []dsm.Inode, err error) {
	err = c.read(ctx, "readdir", func(s *state) error {
		d, err := s.dir(dir)
		if err != nil {
			return err
		}
		inodes = make([]dsm.Inode, len(entries))
		for i, e := range entries {
			if ino, ok := d.entries[e.Name]; ok && ino == e.Ino {
				inodes[i] = s.inodes[ino].Inode
			}
		}
		return nil
	})
	return inodes, err
}

// GetXattr returns the value of an extended attribute; it is the caller's.
func (c *Catalog) GetXattr(ctx context.Context, ino dsm.Ino, name string) (value []byte, err error) {
	err = c.read(ctx, "getxattr", func(s *state) error {
		in, err := s.get(ino)
		if err != nil {
			return err
		}
		v, ok := in.xattrs[name]
		if !ok {
			return fail(errs.NoAttr, "%q", name)
		}
		value = bytes.Clone(v)
		return nil
	})
	return value, err
}

// ListXattr returns the names of the extended attributes in order.
func (c *Catalog) ListXattr(ctx context.Context, ino dsm.Ino) (names []string, err error) {
	err = c.read(ctx, "listxattr", func(s *state) error {
		in, err := s.get(ino)
		if err == nil {
			names = sortedKeys(in.xattrs)
		}
		return err
	})
	return names, err
}

// Usage returns the memory that files take, the memory available for them, and the number of
// inodes, from the point of view of a program that makes full files: budget is the least memory of
// a node, and budget - reserved is how much full files may still grow. A demand file counts as much
// as it takes away from that. So it is often larger than what it takes here, and one larger than
// budget may still find room. The difference is negative when a node has left and others lack room
// for pages on demand. A node that is fenced says what was so last.
func (c *Catalog) Usage(ctx context.Context) (reserved, budget int64, inodes uint64, err error) {
	after := c.ask
	if c.Fenced() {
		after = func(context.Context) error { return nil }
	}
	err = c.readAfter(ctx, "statfs", after, func(s *state) error {
		reserved, budget = s.usage()
		inodes = uint64(len(s.inodes))
		return nil
	})
	return reserved, budget, inodes, err
}

// Promised returns how much of this node's memory files take, or may take at any time: a file that nobody has opened here too.
func (c *Catalog) Promised() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.mu.state
	quota := quotas(s.view)
	return s.reserved.of(c.self, quota[c.self.ID], backupQuotas(s.view, quota)[c.self.ID], roomPages).need()
}

// Current returns the newest view that this node has applied, an empty one before Bootstrap or
// Join.
func (c *Catalog) Current() *dsm.View { return c.view.Load() }

// Area returns the area in the state that this node has applied.
func (c *Catalog) Area(id dsm.AreaID) (dsm.Inode, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	in := c.mu.state.inodes[dsm.Ino(id)]
	if in == nil || in.Kind != dsm.KindFile {
		return dsm.Inode{}, false
	}
	return in.Inode, true
}

// AreaSince is Area, and returns also the smallest size of the area after index rev, and when it was shrunk to that. If it was not shrunk
// since, gen is 0.
func (c *Catalog) AreaSince(id dsm.AreaID, rev dsm.Generation) (now dsm.Inode, least int64, gen dsm.Generation, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	in := c.mu.state.inodes[dsm.Ino(id)]
	if in == nil || in.Kind != dsm.KindFile {
		return dsm.Inode{}, 0, 0, false
	}
	if c, ok := in.shrinkSince(rev); ok {
		return in.Inode, c.Size, c.Rev, true
	}
	return in.Inode, in.Size, 0, true
}

// WaitApplied returns when this node has applied the log up to rev and the
// view of epoch e.
func (c *Catalog) WaitApplied(ctx context.Context, rev dsm.Generation, e dsm.Epoch) error {
	return named("wait", c.progress.wait(ctx, c.life, uint64(rev), e))
}
