package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// cut is how far an area was shrunk since the kernel was last told of it. Until
// then the kernel's page cache may hold stores from before the shrink past the new
// end, and write them back should the area have grown again: they are gone for
// good and are dropped. What a program writes with write(2) is of now and is not.
type cut struct {
	set  bool
	size int64
	gen  dsm.Generation // of the last shrink
}

func (c *cut) add(size int64, gen dsm.Generation) {
	if !c.set || size < c.size {
		c.size = size
	}
	c.set, c.gen = true, gen
}

// KernelTold says that the kernel has dropped what it held of the area past size,
// after it was shrunk in generation gen or before.
func (a *Area) KernelTold(size int64, gen dsm.Generation) {
	a.step(func() {
		if c := &a.mu.cut; c.set && gen >= c.gen && size <= c.size {
			*c = cut{}
		}
	})
}

// WriteBack is WriteAt for what the kernel writes back of its page cache.
func (a *Area) WriteBack(p []byte, off int64) error {
	return a.write(p, off, writtenBack)
}
