package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestScrubFindsAnotherByte changes a byte of the copy that a backup keeps, in the memory of its daemon. A scrub of the home says so, and mends it: when the home dies the
// file has what was written.
func TestScrubFindsAnotherByte(t *testing.T) {
	c := nodes(t, 3)
	cl := c.Node(1).Client()
	cl.Must("mkdir %s", cl.Path("d"))
	cl.SetXattr("d", "user.dsm.replicas", "2")
	cl.SetXattr("d", "user.dsm.placement", "n1")
	line := strings.Repeat("a line that is in this file alone ", 8) + "\n"
	want := strings.Repeat(line, 4*page/len(line))
	path := filepath.Join(c.Node(1).Mount, "d", "f")
	write := c.Node(1).Run(limit, "sh", "-ec", fmt.Sprintf(`printf %%s "$1" > %s`, path), "sh", want)
	if write.Err != nil {
		t.Fatal(write)
	}
	_, backups := backupsOf(t, c.Node(1), cl, "d/f", 2)
	var backup, other *harness.Node
	for _, n := range c.Nodes()[1:] {
		if n.Name == backups[0] {
			backup = n
		} else {
			other = n
		}
	}
	scrub := func() map[string]string {
		t.Helper()
		if res := c.Node(1).Run(limit, "sh", "-ec", fmt.Sprintf("echo now > %[1]s/.dsm/scrub; cat %[1]s/.dsm/scrub", c.Node(1).Mount)); res.Err != nil {
			t.Fatal(res)
		} else {
			return figures(res.Stdout)
		}
		return nil
	}
	if got := scrub(); got["differed"] != "0" || got["same"] != "1" || got["passes"] != "1" {
		t.Errorf("a scrub finds %v before anything is wrong", got)
	}
	if n := change(t, backup.PID(), []byte(line)); n == 0 {
		t.Fatal("the backup has not got the bytes")
	}
	if got := scrub(); got["differed"] != "1" {
		t.Errorf("a scrub finds %v after a byte of a copy has become another", got)
	}
	if !harness.Eventually(limit, func() bool { return scrub()["same"] == "1" }) {
		t.Errorf("the copy is not made anew: %v", scrub())
	}
	for _, n := range []*harness.Node{c.Node(1), backup} {
		log, err := os.ReadFile(n.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(log, []byte("differs from its home")) {
			t.Errorf("the log of %s says nothing of the copy that differs", n.Name)
		}
	}
	c.Node(1).Kill()
	if res := other.Run(limit, "cat", filepath.Join(other.Mount, "d", "f")); res.Err != nil || res.Stdout != want {
		t.Errorf("after the death of the home the file reads %d bytes, %v, the same: %v", len(res.Stdout), res.Err, res.Stdout == want)
	}
}

// figures parses a flat keyed text.
func figures(text string) map[string]string {
	list := make(map[string]string)
	for l := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(l), " ")
		list[key] = value
	}
	return list
}

// change changes the first byte of each place in the memory of a process that has the bytes, and returns how many there were. It looks only at memory that is there.
func change(t *testing.T, pid int, what []byte) (n int) {
	t.Helper()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	b, entry := make([]byte, page), make([]byte, 8)
	for s := bufio.NewScanner(maps); s.Scan(); {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") {
			continue
		}
		all := make([]byte, (to-from)/page*8)
		k, err := pagemap.ReadAt(all, from/page*8)
		if err != nil && err != io.EOF {
			continue
		}
		for i := range int64(k / 8) {
			if copy(entry, all[8*i:]); entry[7]&0x80 == 0 { // not there
				continue
			}
			if _, err := mem.ReadAt(b, from+i*page); err != nil {
				continue
			}
			if at := bytes.Index(b, what); at >= 0 {
				if _, err := mem.WriteAt([]byte{'#'}, from+i*page+int64(at)); err == nil {
					n++
				}
			}
		}
	}
	return n
}
