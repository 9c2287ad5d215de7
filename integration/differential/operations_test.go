package differential

import (
	"encoding/hex"
	"strings"
)

var (
	dirs  = []string{"d0", "d1", "d2", "d0/s"}
	names = []string{"a", "b", "c", "d0/a", "d0/b", "d1/a", "d2/a", "d0/s/a"}
	modes = []string{"O_RDONLY", "O_WRONLY", "O_RDWR", "O_RDWR", "O_RDWR"}
	extra = []string{"O_CREAT", "O_CREAT", "O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_DIRECT", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "O_DSYNC"}
)

func (w *world) pick(list []string) string { return list[w.rng.IntN(len(list))] }

// name is mostly a file's, now and then a directory's or that of something that is never there.
func (w *world) name() string {
	switch k := w.rng.IntN(20); k {
	case 0:
		return w.pick(dirs)
	case 1:
		return "a/b"
	}
	return w.pick(names)
}

func (w *world) flags() string {
	words := []string{w.pick(modes)}
	for range w.rng.IntN(4) {
		if word := w.pick(extra); !without(word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, ",")
}

// offset is mostly within the first pages, sometimes about the border of two extents.
func (w *world) offset() int {
	switch k := w.rng.IntN(10); {
	case k < 3:
		return w.rng.IntN(300)
	case k < 8:
		return w.rng.IntN(4 * 4096)
	default:
		return 1<<20 - 5000 + w.rng.IntN(10000)
	}
}

func (w *world) size() int {
	if w.rng.IntN(3) == 0 {
		return 1 + w.rng.IntN(9000)
	}
	return 1 + w.rng.IntN(200)
}

func (w *world) data() string {
	b := make([]byte, w.size())
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	return hex.EncodeToString(b)
}

func (w *world) slot() int { return w.rng.IntN(slots) }

// step does one operation of a random program.
func (w *world) step() {
	w.t.Helper()
	p := w.programs[w.rng.IntN(len(w.programs))]
	for range 1 + w.rng.IntN(3) { // a few in a row, so that stores meet within a node
		switch k := w.rng.IntN(100); {
		case k < 18:
			w.open(p)
		case k < 45:
			w.write(p)
		case k < 65:
			w.look(p, w.slot())
		case k < 80:
			w.rename(p)
		default:
			w.other(p)
		}
	}
}

func (w *world) open(p *program) {
	w.t.Helper()
	n := w.slot()
	switch k := w.rng.IntN(10); {
	case k < 6:
		w.leave(p, n)
		w.do(p, "open", n, w.name(), w.flags(), 0o600+w.rng.IntN(0o100))
	case k < 7:
		w.leave(p, n)
		w.do(p, "close", n)
	case k < 8:
		m := w.slot()
		w.leave(p, m)
		w.do(p, "dup", n, m)
	default:
		m := w.slot()
		w.leaveMap(p, m)
		w.do(p, "mmap", m, n, w.rng.IntN(3) > 0)
	}
}

// leave forgets a descriptor that is about to be closed: close publishes.
func (w *world) leave(p *program, n int) {
	if p.files[n] {
		p.files[n] = false
		w.both(p, "fsync", n)
	}
}

// leaveMap syncs a mapping that is about to go: munmap does not publish.
func (w *world) leaveMap(p *program, n int) {
	if p.maps[n] {
		p.maps[n] = false
		w.both(p, "msync", n)
	}
}

func (w *world) write(p *program) {
	w.t.Helper()
	n := w.slot()
	file := func(op string, args ...any) {
		if !strings.HasPrefix(w.do(p, op, args...), "err ") {
			p.files[n] = true
		}
	}
	switch k := w.rng.IntN(20); {
	case k < 5:
		file("pwrite", n, w.offset(), w.data())
	case k < 6:
		file("pwritev", n, w.offset(), w.data())
	case k < 9:
		file("write", n, w.data())
	case k < 14:
		if !strings.HasPrefix(w.do(p, "mstore", n, w.offset(), w.data()), "err ") {
			p.maps[n] = true
		}
	case k < 15:
		file("fallocate", n, w.offset(), w.size())
	case k < 16:
		w.fresh(p, n)
		from := w.slot()
		w.fresh(p, from)
		file("copy_range", from, n, w.offset(), w.offset(), w.size())
	case k < 17:
		w.do(p, "save", w.name(), w.data())
	case k < 18:
		w.do(p, "append", w.name(), w.data())
	case k < 19:
		w.do(p, "replace", w.name(), w.data())
	default:
		if w.rng.IntN(2) == 0 {
			w.do(p, "truncate", w.name(), w.offset())
		} else {
			w.do(p, "ftruncate", n, w.offset())
		}
	}
}

// fresh brings the node up to date with what was published of an open file.
func (w *world) fresh(p *program, n int) {
	w.t.Helper()
	p.files[n] = false
	w.do(p, "fsync", n)
}

// look reads by a descriptor or a mapping.
func (w *world) look(p *program, n int) {
	w.t.Helper()
	switch k := w.rng.IntN(11); {
	case k == 10:
		w.fresh(p, n)
		w.do(p, "holes", n)
	case k < 3:
		w.fresh(p, n)
		w.do(p, "pread", n, w.offset(), 20000)
	case k < 4:
		w.fresh(p, n)
		w.do(p, "preadv", n, w.offset(), 9000)
	case k < 5:
		w.fresh(p, n)
		w.do(p, "read", n, w.size())
	case k < 8:
		p.maps[n] = false
		w.do(p, "msync", n)
		w.do(p, "mload", n, w.offset(), w.size())
	default:
		w.do(p, "load", w.name())
	}
}

func (w *world) rename(p *program) {
	w.t.Helper()
	switch k := w.rng.IntN(10); {
	case k < 2:
		w.do(p, "unlink", w.name())
	case k < 5:
		w.do(p, "rename", w.name(), w.name())
	case k < 6:
		w.do(p, "rename", w.pick(dirs), w.pick(dirs))
	case k < 7:
		w.do(p, "link", w.name(), w.name())
	case k < 8:
		w.do(p, "symlink", w.pick([]string{"a", "../a", "d0", "d0/a", "nowhere"}), w.name())
	case k < 9:
		w.do(p, "mkdir", w.pick(dirs))
	default:
		w.do(p, "rmdir", w.pick(dirs))
	}
}

func (w *world) other(p *program) {
	w.t.Helper()
	n := w.slot()
	switch k := w.rng.IntN(14); k {
	case 0, 1:
		w.do(p, "stat", w.name())
	case 2:
		w.do(p, "lstat", w.name())
	case 3, 4:
		w.do(p, "fstat", n)
	case 5:
		w.do(p, "list", w.pick(append(dirs, ".")))
	case 6:
		w.do(p, "scan", w.pick(append(dirs, ".")))
	case 7:
		w.do(p, "readlink", w.name())
	case 8:
		w.do(p, "lseek", n, w.offset(), w.pick([]string{"SEEK_SET", "SEEK_CUR"}))
	case 9:
		w.do(p, "lseek", n, -w.rng.IntN(100), "SEEK_END")
	case 10:
		w.do(p, "fchmod", n, 0o600+w.rng.IntN(0o100))
	case 11:
		w.do(p, "setxattr", w.name(), "user.k", w.pick([]string{"v", "", "longer value"}))
	case 12:
		w.do(p, "getxattr", w.name(), "user.k")
	default:
		w.do(p, "getfl", n)
	}
}
