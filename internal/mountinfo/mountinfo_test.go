package mountinfo

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	all, err := Parse(`22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
43 27 0:39 / /mnt/a\040b rw,nosuid - fuse.dsmfs dsmfs rw,user_id=0
44 27 0:40 / /mnt/x\134 rw,nosuid shared:3 master:1 - fuse.dsmfs dsmfs rw
45 27 0:41 / /mnt/a\040b rw - tmpfs none rw
`)
	want := []Mount{{"8:1", "/", "ext4"}, {"0:39", "/mnt/a b", "fuse.dsmfs"}, {"0:40", `/mnt/x\`, "fuse.dsmfs"}, {"0:41", "/mnt/a b", "tmpfs"}}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Fatalf("%v, %v, want %v", all, err, want)
	}
	if m, ok := Top(all, "/mnt/a b"); !ok || m != want[3] {
		t.Errorf("on top: %v", m)
	}
	if _, ok := Top(all, "/mnt"); ok {
		t.Error("/mnt is no mount")
	}
	for _, bad := range []string{"nonsense\n", "45 27 0:41 / /mnt/x rw tmpfs none rw\n", "45 27 0:41 /mnt rw - tmpfs none rw\n"} {
		if all, err := Parse(bad); err == nil {
			t.Errorf("%q is read as %v", bad, all)
		}
	}
}

func TestRead(t *testing.T) {
	all, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Top(all, "/proc"); !ok {
		t.Errorf("/proc is no mount of %v", all)
	}
}
