package fs

import (
	"context"
	"errors"

	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// publish publishes what was stored to the area before, if anything was.
func (b *bridge) publish(ctx context.Context, a *openArea) error {
	return b.publishBy(ctx, a, Area.Publish)
}

// publishReleased is publish where no program waits for it, as after a close: a program may have opened the area again, and be storing. Of a versioned area what is
// left goes with its next publish then.
func (b *bridge) publishReleased(ctx context.Context, a *openArea) error {
	return b.publishReleasedBy(ctx, a, Area.PublishReleased)
}

// publishReleasedBy is publishReleased, which how does in the data plane.
func (b *bridge) publishReleasedBy(ctx context.Context, a *openArea, how func(Area, context.Context) (published bool, err error)) error {
	err := b.publishBy(ctx, a, func(area Area, ctx context.Context) error {
		published, err := how(area, ctx)
		if !published {
			err = errors.Join(err, errOpenToStore)
		}
		return err
	})
	if errors.Is(err, errOpenToStore) {
		return nil
	}
	return err
}

// storesWhole reports whether the program that has sent a request has a versioned area open for writing. What another one is storing is for that one to publish.
func (b *bridge) storesWhole(r *request, a *openArea) bool {
	return a.spec().Mode == dsm.ModeVersioned && a.programs.has(processOf(int(r.tid)))
}

// errOpenToStore is no failure: see publishReleased.
var errOpenToStore = errors.New("programs have the area open for writing")

// publishBy is publish, which how does in the data plane.
func (b *bridge) publishBy(ctx context.Context, a *openArea, how func(Area, context.Context) error) error {
	stored := a.stored.Load()
	if stored == a.published.Load() && a.attached.Load() == 0 && a.spec().Mode != dsm.ModeVersioned { // of which programs may have left something
		return nil
	}
	a.publishing.Add(1)
	defer a.publishing.Add(-1)
	b.grown(ctx, a)
	if err := how(a.current(), ctx); err != nil {
		return err
	}
	b.countSoon(a) // first, so that a store is published only when it is known to be counted or not
	a.reached(stored)
	if b.forfeits(a) {
		a.forfeited.Store(true)
	}
	return nil
}

// errForfeited is for programs whose stores were given up together with locks.
var errForfeited = errs.E(errs.Unavailable, "publish", "the cluster took this node for dead and dropped its locks: what was stored is not published; close the file and open it again")

// sync is fsync and msync, which do does in the data plane: it publishes, and acquires from the homes of
// the area as long as this node knows it to be. Another node may have made it longer, and published there, before the
// sync began; so the catalog is asked meanwhile, and if that was so do is called again, and the kernel told of the size.
func (b *bridge) sync(ctx context.Context, a *openArea, do func(context.Context) error) error {
	stored := a.stored.Load()
	a.publishing.Add(1)
	defer a.publishing.Add(-1)
	b.grown(ctx, a)
	if err := b.acquire(ctx, a, do); err != nil {
		return err
	}
	b.countSoon(a) // first, so that a store is published only when it is known to be counted or not
	a.reached(stored)
	if b.forfeits(a) {
		a.forfeited.Store(false)
		return errForfeited
	}
	return nil
}

// forfeits reports whether what is stored is given up: the cluster has dropped locks of the file that programs here believe to have.
func (b *bridge) forfeits(a *openArea) bool {
	return b.cfg.Locks != nil && b.cfg.Locks.Dropped(dsm.Ino(a.id)) && a.spec().Forfeits()
}

// acquire calls do, which acquires in the data plane, as sync does.
func (b *bridge) acquire(ctx context.Context, a *openArea, do func(context.Context) error) error {
	size, gen := a.noted()
	newest := b.newest(ctx, a)
	err := do(ctx)
	now := <-newest // also after an error: it uses ctx
	switch {
	case err != nil:
		return err
	case now.err != nil:
		return now.err
	case now.inode.Size > size || now.inode.Gen > gen:
		a.note(now.inode)
		if err := do(ctx); err != nil {
			return err
		}
	}
	if err := a.current().Grown(ctx, 0, now.inode.Size); err != nil {
		return err
	}
	if b.cfg.Mountpoint != "" && !a.direct.on.Load() && a.kernelBehind(now.inode) {
		b.notify.tellSize(ctx, a)
	}
	return nil
}

// asked is what the catalog says of an area.
type asked struct {
	inode dsm.Inode
	err   error
}

// newest asks the catalog for the inode of an area. What has gone has nothing new.
func (b *bridge) newest(ctx context.Context, a *openArea) <-chan asked {
	answer := make(chan asked, 1)
	go func() {
		i, err := b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
		if errs.Is(err, errs.NotExist) {
			err = nil
		}
		answer <- asked{i, err}
	}()
	return answer
}

// reached records that the first n stores are published.
func (a *openArea) reached(n uint64) {
	for {
		old := a.published.Load()
		if old >= n || a.published.CompareAndSwap(old, n) {
			return
		}
	}
}

// harvestAndPublish is publish including what programs have stored into their mappings without
// telling anyone. What is known to be stored is published while the harvest child looks for more.
func (b *bridge) harvestAndPublish(ctx context.Context, a *openArea) error {
	if a.live.Load() == 0 || !a.kernelPages.Load() {
		return b.publish(ctx, a)
	}
	known := make(chan error, 1)
	if a.stored.Load() == a.published.Load() || a.spec().Mode == dsm.ModeVersioned { // half of a version is not published
		known <- nil
	} else {
		go func() { known <- b.publish(ctx, a) }()
	}
	err := b.harvest.Sync(ctx, []harvest.Target{{Area: a}})[0]
	if e := <-known; err == nil && !errs.Is(e, errs.NotFinite) { // what the harvest brought may be finite
		err = e
	}
	if err != nil {
		return err
	}
	return b.publish(ctx, a)
}

// givesPages says that the kernel is about to have pages of the area.
func (b *bridge) givesPages(a *openArea) {
	if !a.kernelPages.Load() {
		a.kernelPages.Store(true)
	}
	b.expectHarvest(a)
}

// expectHarvest makes the harvest child open an area that a program has locked for writing, so that
// the unlock does not wait for that.
func (b *bridge) expectHarvest(a *openArea) {
	if !a.writeLocked.Load() || !a.kernelPages.Load() || a.live.Load() == 0 || a.expecting.Load() || a.expecting.Swap(true) {
		return
	}
	b.background.run(func() {
		ctx, cancel := b.lasting()
		defer cancel()
		if err := b.harvest.Sync(ctx, []harvest.Target{{Area: a}})[0]; err != nil {
			b.log.Debug("harvest", "area", a.id, "err", err)
		}
	})
}

// keepModTime writes the time of the last store to the catalog, where it stays
// when the area is closed, and has the pages counted.
func (b *bridge) keepModTime(ctx context.Context, a *openArea) {
	if !a.untimed() || !b.tellModTime(ctx, a) {
		return
	}
	b.counted(ctx, a)
}

// untimed reports whether there may be stores whose time the catalog does not have.
func (a *openArea) untimed() bool {
	return a.stored.Load() != a.timed.Load() || a.attached.Load() != 0
}

// takeTiming waits until nobody else tells the catalog a time of modification.
func (a *openArea) takeTiming(ctx context.Context) error {
	select {
	case a.timing <- struct{}{}:
		return nil
	default: // ctx.Done may be costly
	}
	select {
	case a.timing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tellModTime tells the catalog the time of the last store, unless a program has set another since: that stays. If it returns
// false nobody will ask, or the catalog did not answer.
func (b *bridge) tellModTime(ctx context.Context, a *openArea) bool {
	if a.takeTiming(ctx) != nil {
		return false
	}
	defer func() { <-a.timing }()
	if !a.untimed() {
		return true
	}
	stored := a.stored.Load()
	i, err := b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
	if err != nil || i.Nlink == 0 {
		return false
	}
	if t := a.modTime(i); t.After(i.Mtime) {
		if i, err = b.cfg.Names.SetAttr(ctx, dsm.Ino(a.id), dsm.SetAttr{Mtime: &t}); err != nil {
			return false
		}
		a.note(i)
	}
	a.timed.Store(stored)
	return true
}
