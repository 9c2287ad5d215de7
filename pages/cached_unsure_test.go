package pages

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// unsurePage is a ledger with a writer and a page of ones that the page cache was given.
func unsurePage(t *testing.T) (c *Cached, w []byte) {
	a := openTestArea(t, NewArea, 4*dsm.PageSize)
	c = NewCached(a)
	c.SetWriters(true)
	w = a.Working(0)
	for i := range w {
		w[i] = 1
	}
	c.Read(0, make([]byte, dsm.PageSize))
	c.EndWrite() // an earlier one
	return c, w
}

// TestWriteToAPageThatCameBack: between a write(2) and its WRITE an update makes the kernel drop the page and read it
// again. What the page cache has of before the write(2) does not undo it, and is a store when a program
// stores it after the write(2).
func TestWriteToAPageThatCameBack(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, early := range []bool{false, true} { // whether Done overtakes the READ
		c, w := unsurePage(t)
		c.BeforeMerge(0)
		w[2] = 2
		n, _ := c.NextNotice()
		if early {
			c.Done(n)
		}
		cache := make([]byte, dsm.PageSize)
		c.Read(0, cache)
		c.Wrote(k, 0, []byte{5}, false)
		c.EndWrite()
		if c.Sure(0, 1) {
			t.Fatal("sure of a page that was read between write(2) and WRITE")
		}
		if !c.Sure(dsm.PageSize, 1) {
			t.Error("unsure of another page")
		}
		if !early {
			c.Done(n)
		}
		n, ok := c.NextNotice()
		if !ok {
			t.Fatal("the page is not dropped")
		}
		cache[1] = 7 // a store, which the drop delivers
		c.Wrote(k, 0, cache, true)
		if want := []byte{5, 7, 2, 1}; !bytes.Equal(w[:4], want) {
			t.Errorf("after the stores the page is %v, want %v", w[:4], want)
		}
		for c.Done(n); ; c.Done(n) {
			if n, ok = c.NextNotice(); !ok {
				break
			}
		}
		if !c.Sure(0, 1) || !c.Idle() {
			t.Fatalf("after the drop: sure %v, idle %v", c.Sure(0, 1), c.Idle())
		}
		c.Read(0, cache)
		cache[0] = 1
		c.Wrote(k, 0, cache, true)
		if want := []byte{1, 7, 2, 1}; !bytes.Equal(w[:4], want) {
			t.Errorf("after a store of what was there before the page is %v, want %v", w[:4], want)
		}
	}
}

// TestSureWrite: a write(2) to a page that no invalidation has dropped since the write(2) before makes no notice.
func TestSureWrite(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	c, w := unsurePage(t)
	c.Wrote(k, 0, []byte{5}, false)
	c.EndWrite()
	if !c.Sure(0, 1) || !c.Idle() {
		t.Error("a write(2) to a page that was read makes a notice")
	}
	c.BeforeMerge(0)
	w[2] = 2
	n, _ := c.NextNotice()
	c.Done(n)
	c.Read(0, make([]byte, dsm.PageSize))
	c.Wrote(k, dsm.PageSize, []byte{5}, false) // the next one begins after it
	c.EndWrite()
	c.Wrote(k, 0, []byte{6}, false)
	if !c.Sure(0, 1) || !c.Idle() {
		t.Error("the second write(2) after a page came back makes a notice")
	}
}

// TestSureWriteToAnUnsurePage: of what the page cache has of an unsure page only the write(2) that made it so is in doubt. What a later one brought
// it certainly has, so a program that stores what was there before that stores.
func TestSureWriteToAnUnsurePage(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	c, w := unsurePage(t)
	c.BeforeMerge(0)
	w[2] = 2
	n, _ := c.NextNotice()
	c.Done(n)
	cache := make([]byte, dsm.PageSize)
	c.Read(0, cache)
	c.Wrote(k, 0, []byte{5}, false)
	c.EndWrite()
	c.Wrote(k, 4, []byte{9}, false)
	c.EndWrite()
	if c.Sure(0, 1) {
		t.Fatal("sure of a page that was read between write(2) and WRITE")
	}
	c.Wrote(k, 0, cache, true) // in it byte 0 is from before the first write(2), and byte 4 is stored as it was before the second
	if want := []byte{5, 1, 2, 1, 1}; !bytes.Equal(w[:5], want) {
		t.Errorf("the page is %v, want %v", w[:5], want)
	}
}
