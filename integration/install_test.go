package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// install runs a target of the Makefile with the program that the tests run.
func install(t *testing.T, target string, variables ...string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	cmd := exec.Command("make", append([]string{"-C", root, "--no-print-directory", target, "BINARY=" + harness.Binary()}, variables...)...)
	// The tests may be run by make themselves, whose flags are not for this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("make %s %v: %v\n%s", target, variables, err, out)
	}
}

// files returns all files below a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestInstall looks at all that make install puts somewhere, and at what make uninstall leaves: nothing.
func TestInstall(t *testing.T) {
	dest := filepath.Join(t.TempDir(), "to here")
	install(t, "install", "DESTDIR="+dest, "PREFIX=/usr")
	want := []string{
		"/sbin/mount.dsmfs", "/usr/bin/dsmfs", "/usr/include/dsmfs.h", "/usr/lib/systemd/system/dsmfs@.service",
		"/usr/share/bash-completion/completions/dsmfs", "/usr/share/doc/dsmfs/LICENSE", "/usr/share/fish/vendor_completions.d/dsmfs.fish",
		"/usr/share/man/man8/dsmfs.8", "/usr/share/man/man8/mount.dsmfs.8", "/usr/share/zsh/site-functions/_dsmfs",
	}
	if got := files(t, dest); !slices.Equal(got, want) {
		t.Errorf("installed %q, want %q", got, want)
	}
	if to, err := os.Readlink(dest + "/sbin/mount.dsmfs"); err != nil || to != "/usr/bin/dsmfs" {
		t.Errorf("the helper is a link to %q, %v", to, err)
	}
	if out, err := exec.Command(dest+"/usr/bin/dsmfs", "version").Output(); err != nil || !strings.HasPrefix(string(out), "dsmfs ") {
		t.Errorf("the installed program: %q, %v", out, err)
	}
	for file, words := range map[string]string{
		"/usr/share/man/man8/dsmfs.8":                  "--insecure",
		"/usr/share/bash-completion/completions/dsmfs": "--insecure",
		"/usr/lib/systemd/system/dsmfs@.service":       "ExecStart=/usr/bin/dsmfs mount -f",
	} {
		text, err := os.ReadFile(dest + file)
		if plain := strings.ReplaceAll(string(text), `\`, ""); err != nil || !strings.Contains(plain, words) {
			t.Errorf("%s does not say %q: %v", file, words, err)
		}
	}
	install(t, "install", "DESTDIR="+dest, "PREFIX=/usr") // over what is there
	other := filepath.Join(dest, "usr/bin/other")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	install(t, "uninstall", "DESTDIR="+dest, "PREFIX=/usr")
	if got := files(t, dest); !slices.Equal(got, []string{"/usr/bin/other"}) {
		t.Errorf("after make uninstall there are %q", got)
	}
}

// TestUnit lets systemd read the unit.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	dest := t.TempDir()
	install(t, "install", "PREFIX="+dest, "HELPERDIR="+dest)
	text, err := os.ReadFile(dest + "/lib/systemd/system/dsmfs@.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "dsmfs@mnt-dsm.service")
	if err := os.WriteFile(unit, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestService runs the daemon as a unit of type notify is run, with a holder and without. The manager believes only the process that it has started.
func TestService(t *testing.T) {
	for _, held := range []bool{false, true} {
		service(t, cluster(t, harness.Options{Default: held}).Declare())
	}
}

func service(t *testing.T, n *harness.Node) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = manager.Close() }() // only a socket
	raw, err := manager.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.Command(context.Background(), harness.Binary(), n.Arguments()...)
	hears := func(want string) {
		t.Helper()
		var buf, more [1024]byte
		if err := manager.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		k, about, _, _, err := manager.ReadMsgUnix(buf[:], more[:])
		if text := string(buf[:max(k, 0)]); err != nil || !slices.Contains(strings.Split(text, "\n"), want) {
			t.Errorf("the manager is told %q, %v; want %s", text, err, want)
		}
		all, err := unix.ParseSocketControlMessage(more[:about])
		if err != nil || len(all) != 1 {
			t.Fatalf("from whom: %v, %v", all, err)
		}
		if who, err := unix.ParseUnixCredentials(&all[0]); err != nil || int(who.Pid) != cmd.Process.Pid {
			t.Errorf("the manager is told by %v, %v, and has started %d", who, err, cmd.Process.Pid)
		}
	}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hears("READY=1")
	done(t, "usable when the manager is told", n.Run(limit, "touch", filepath.Join(n.Mount, "f")))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	hears("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestMountHelper mounts with mount(8) as root does by hand, at boot and from fstab. It installs the helper into a
// mount namespace of its own, which takes all of it along when it ends.
func TestMountHelper(t *testing.T) {
	c := cluster(t, harness.Options{})
	a, b := c.Declare(), c.Declare()
	dest := t.TempDir()
	install(t, "install", "PREFIX="+dest, "HELPERDIR="+dest+"/sbin")
	fstab := filepath.Join(t.TempDir(), "fstab")
	options := func(n *harness.Node, more string) string {
		return fmt.Sprintf("memory=64M,name=%s,listen=%s,state=%s,%s", n.Name, n.Address, n.State(), more)
	}
	lines := fmt.Sprintf("dsmfs %s dsmfs %s 0 0\n%s %s dsmfs %s 0 0\n",
		a.Mount, options(a, "_netdev,nofail,x-systemd.automount,x-systemd.requires=network-online.target"),
		a.Address, b.Mount, options(b, "noauto,nofail,_netdev"))
	if err := os.WriteFile(fstab, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	res := a.Run(callLimit, "unshare", "--mount", "bash", "-euc", `
		dest=$1 fstab=$2 a=$3 b=$4 dsmfs=$1/bin/dsmfs
		sbin=$(readlink -f /sbin)
		mount -t overlay -o "lowerdir=$dest/sbin:$sbin" none "$sbin"
		trap 'for m in "$a" "$b"; do "$dsmfs" umount --force "$m" 2>/dev/null || true; done' EXIT
		mount --fstab "$fstab" --all            # what boot does
		mount --fstab "$fstab" --all            # and again: it is mounted
		mount --fstab "$fstab" "$b"             # the second line, by hand
		echo shared > "$a/f"
		cat "$b/f"
		findmnt --noheadings --output FSTYPE "$a"
		df --output=source "$b" | tail -1
		umount "$b"
		mount --types dsmfs --options "`+options(b, "rw,nosuid")+`" "`+a.Address+`" "$b"
		cat "$b/f"
		"$dsmfs" umount "$b"
		"$dsmfs" umount "$a"
		mount --types dsmfs --options ro dsmfs "$a" 2>&1 || echo "code $?"
		trap - EXIT
	`, "bash", dest, fstab, a.Mount, b.Mount)
	if res.Err != nil {
		t.Fatalf("%v\n%s%s", res.Err, res.Stdout, res.Stderr)
	}
	if want := `^shared\nfuse.dsmfs\ndsmfs:[0-9a-f]{16}/n2\nshared\n`; !regexp.MustCompile(want).MatchString(res.Stdout) {
		t.Errorf("printed %q, want %s first", res.Stdout, want)
	}
	if !strings.Contains(res.Stderr, a.Mount+" is mounted already") {
		t.Errorf("the second mount --all says %q", res.Stderr)
	}
	if !strings.Contains(res.Stdout, "unknown option -o ro") || !strings.Contains(res.Stdout, "code 2") {
		t.Errorf("of a wrong option: %q", res.Stdout)
	}
}

const callLimit = 60 * time.Second
