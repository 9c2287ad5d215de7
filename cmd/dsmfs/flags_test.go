package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "64M": 64 << 20, "64m": 64 << 20, "64MB": 64 << 20, "64MiB": 64 << 20, "1.5G": 3 << 29,
		"2t": 2 << 40, "512 K": 512 << 10, " 7 ": 7, "100b": 100,
	} {
		var b byteSize
		if err := b.Set(text); err != nil || int64(b) != want {
			t.Errorf("%q: %d, %v; want %d", text, b, err, want)
		}
	}
	for _, text := range []string{"", "much", "-1", "0", "1X", "1KK", "0.1", "1e30", "nan", "inf", "9000000T", "M", "1iM"} {
		var b byteSize
		if err := b.Set(text); err == nil {
			t.Errorf("%q is taken for %d", text, b)
		}
	}
	for n, want := range map[byteSize]string{64 << 20: "64M", 3 << 29: "1536M", 1: "1", 0: "0", 4097: "4097"} {
		if got := n.String(); got != want {
			t.Errorf("%d: %q, want %q", int64(n), got, want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 29: "1.5 GiB", 1 << 62: "4.0 EiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ flag, in, want string }{
		{"join", "host1", "host1:7480"},
		{"join", "host1:99", "host1:99"},
		{"join", "::1", "[::1]:7480"},
		{"join", "[::1]:99", "[::1]:99"},
		{"join", "[::1]", "[::1]:7480"},
		{"listen", ":7480", ":7480"},
		{"listen", "127.0.0.1:0", "127.0.0.1:0"},
	} {
		if got, err := withPort(c.flag, c.in); err != nil || got != c.want {
			t.Errorf("--%s %s: %q, %v; want %q", c.flag, c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ flag, in string }{
		{"join", ""}, {"join", ":7480"}, {"join", "h:0"}, {"join", "h:x"}, {"listen", "h:70000"}, {"join", "a:b:c"}, {"listen", "h:-1"},
	} {
		if got, err := withPort(c.flag, c.in); err == nil {
			t.Errorf("--%s %q is taken for %q", c.flag, c.in, got)
		}
	}
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "host1:1": false, "[::]:1": false,
	} {
		if isLoopback(addr) != want {
			t.Errorf("isLoopback(%s) = %v", addr, !want)
		}
	}
}

func parsed(t *testing.T, args ...string) mountConfig {
	t.Helper()
	c, err := parseMount(&program{out: new(bytes.Buffer), err: new(bytes.Buffer)}, args)
	if err != nil {
		t.Fatalf("mount %v: %v", args, err)
	}
	return c
}

func TestOptionsEqualFlags(t *testing.T) {
	flags := parsed(t, "/mnt", "--join", "127.0.0.1", "--join", "localhost:9", "--listen", "0.0.0.0:1", "--advertise", "h:2", "--insecure",
		"--name", "n", "--memory", "64M", "--state", "/s", "--fault-timeout", "5s", "--unmount-timeout", "6s", "--lease", "7s", "--scrub", "8h", "--log-level", "debug", "--log-file", "/l", "--tracking", "compare", "--passthrough", "off", "--hold=off", "--no-mount", "--force")
	options := parsed(t, "-o", "rw,noauto,_netdev,nofail,user,defaults,x-systemd.automount,join=127.0.0.1", "/mnt", "-o",
		"join=localhost:9,listen=0.0.0.0:1,advertise=h:2,insecure,name=n,memory=64M,state=/s,fault_timeout=5s,unmount_timeout=6s,lease=7s,scrub=8h,log-level=debug,log_file=/l,tracking=compare,passthrough=off,hold=off,no_mount,force")
	if !slices.Equal(flags.join, options.join) {
		t.Errorf("join: %v and %v", flags.join, options.join)
	}
	if want := []string{"127.0.0.1:7480", "localhost:9"}; !slices.Equal(flags.join, want) {
		t.Errorf("join: %v, want %v", flags.join, want)
	}
	flags.join, options.join = nil, nil
	want := mountConfig{
		point: "/mnt", listen: "0.0.0.0:1", advertise: "h:2", name: "n", insecure: true, memory: 64 << 20, state: "/s",
		timeout: 5 * time.Second, unmount: 6 * time.Second, lease: 7 * time.Second, scrub: 8 * time.Hour, tracking: "compare", passthrough: "off", hold: holdOff, noMount: true, logLevel: "debug", logFile: "/l", force: true, allowOther: os.Geteuid() == 0,
	}
	for what, c := range map[string]mountConfig{"flags": flags, "options": options} {
		if got, want := fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", want); got != want {
			t.Errorf("%s:\n%s, want\n%s", what, got, want)
		}
	}
}

// A node that joins another machine must be reached by it.
func TestWhoJoinsListens(t *testing.T) {
	for listen, args := range map[string][]string{
		":7480":          {"/mnt", "--join", "host1", "--token", someToken},
		"127.0.0.1:7480": {"/mnt", "--join", "localhost", "--token", someToken},
		"10.0.0.1:7480":  {"/mnt", "-o", "join=host1,listen=10.0.0.1,token=" + someToken},
	} {
		if c := parsed(t, args...); c.listen != listen || c.token != someToken {
			t.Errorf("%v: listens on %q with token %q, want %q", args, c.listen, c.token, listen)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(someToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := parsed(t, "/mnt", "--join", "host1", "--token", "@"+file); c.token != someToken {
		t.Errorf("from a file: %q", c.token)
	}
}

func TestMountHelper(t *testing.T) {
	p := &program{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	for _, args := range [][]string{
		{"mount.dsmfs", "dsmfs", "/mnt", "-f", "-o", "rw,memory=64M"},
		{"/sbin/mount.dsmfs", "127.0.0.1:99", "/mnt", "-sfnv", "-t", "dsmfs", "-o", "rw"},
	} {
		if err := p.dispatch(args); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := p.dispatch([]string{"mount.dsmfs", "otherhost", "/mnt", "-f"}); codeOf(err) != exitInsecure {
		t.Errorf("joining another machine: %v", err)
	}
	if err := p.dispatch([]string{"mount.dsmfs", "dsmfs"}); codeOf(err) != exitUsage {
		t.Errorf("without a mount point: %v", err)
	}
}

// TestHoldFlag: all that people write, as a flag and as a mount option.
func TestHoldFlag(t *testing.T) {
	for text, want := range map[string]holdMode{
		"": holdAuto, "hold": holdOn, "hold=on": holdOn, "hold=true": holdOn, "hold=auto": holdAuto, "hold=off": holdOff, "hold=false": holdOff,
	} {
		args := [][]string{{"/mnt"}}
		if text != "" {
			args = [][]string{{"/mnt", "--" + text}, {"--" + text, "/mnt"}, {"/mnt", "-o", "rw," + text}, {"/mnt", "--hold=off", "--" + text}}
		}
		for _, a := range args {
			var c mountConfig
			p := &program{out: io.Discard, err: io.Discard}
			f := p.flags("mount")
			registerMountFlags(f, &c)
			options := f.StringArrayP("options", "o", nil, "")
			if err := parse(f, a, 1, 1, ""); err != nil {
				t.Fatalf("%q: %v", a, err)
			}
			if err := applyOptions(f, *options); err != nil || c.hold != want {
				t.Errorf("%q: %s, %v; want %s", a, c.hold, err, want)
			}
		}
	}
	if code, _, text := cli("mount", "/mnt", "--hold=perhaps"); code != exitUsage || !strings.Contains(text, "want auto, on or off") {
		t.Errorf("--hold=perhaps: %d, %s", code, text)
	}
}

// TestNotHeld: where a mount gets a holder.
func TestNotHeld(t *testing.T) {
	for _, c := range []struct {
		mode    holdMode
		noMount bool
		root    bool
		kernel  string
		held    bool
	}{
		{holdAuto, false, true, "6.9.0-generic", true},
		{holdAuto, false, true, "6.18.44", true},
		{holdAuto, false, true, "7.0-rc1", true},
		{holdAuto, false, true, "6.8.12", false},
		{holdAuto, false, true, "unknown", false},
		{holdAuto, false, false, "6.18.44", false},
		{holdAuto, true, true, "6.18.44", false},
		{holdOff, false, true, "6.18.44", false},
		{holdOn, false, true, "6.1.0", true}, // the log says that it is lost with the daemon
	} {
		m := mountConfig{hold: c.mode, noMount: c.noMount}
		if why := m.notHeld(c.root, c.kernel); (why == "") != c.held {
			t.Errorf("%+v: %q", c, why)
		}
	}
}
