package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// programLimit ends a program of a test that hangs.
const programLimit = time.Minute

// compile builds a C program or library of the tree and returns where it is.
func compile(t *testing.T, flags string, sources ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	out := filepath.Join(t.TempDir(), "built")
	args := append(strings.Fields("-g -Wall -Wextra -Werror -o "+out+" "+flags), "-pthread")
	for _, s := range sources {
		found, err := filepath.Glob(filepath.Join("..", "..", s))
		if err != nil || len(found) == 0 {
			t.Fatalf("no source %s: %v", s, err)
		}
		args = append(args, found...)
	}
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		if strings.Contains(string(text), "cannot find -l") || strings.Contains(string(text), "libasan") || strings.Contains(string(text), "libtsan") {
			t.Skipf("the compiler has no such sanitizer: %s", text)
		}
		t.Fatalf("cc %v: %v\n%s", args, err, text)
	}
	return out
}

// runProgram runs a program and wants it to end well; it returns what it printed. Of
// env, "NAME=value" is added.
func runProgram(t *testing.T, env []string, argv ...string) (out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	cmd.WaitDelay = time.Second // for what it left running
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", argv, err, o.String(), e.String())
	}
	return o.String(), e.String()
}

// wireDaemon answers include/test/api.c and lost.c as no daemon would: late, in another
// order, wrong or not at all.
type wireDaemon struct {
	ln         *net.UnixListener
	waiting    [][]byte // replies to WAIT, until all have asked
	unanswered int      // requests that get no reply
	seen       map[string]bool
	watched    bool // a descriptor came with the request
}

const wireThreads = 8 // of api.c

func startWireDaemon(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attach")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	d := &wireDaemon{ln: ln, seen: make(map[string]bool)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			if err := d.serve(c); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return path
}

// serve answers one connection until it ends. The program has one at a time.
func (d *wireDaemon) serve(c *net.UnixConn) error {
	defer func() { _ = c.Close() }() // the end of the test
	buf, oob := make([]byte, 1<<13), make([]byte, 64)
	for {
		n, on, _, _, err := c.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return nil // the program has ended it
		}
		if messages, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && on > 0 {
			for _, m := range messages {
				fds, _ := unix.ParseUnixRights(&m)
				for _, fd := range fds {
					d.watched = true
					_ = unix.Close(fd) // a userfaultfd of which nobody asks anything
				}
			}
		}
		if n < 64 {
			return errors.New("a packet shorter than its header")
		}
		if more, err := d.answer(c, buf[:64], string(buf[64:n])); err != nil || !more {
			return err
		}
		d.watched = false
	}
}

// reply makes the answer to a request out of it.
func reply(head []byte, a, b, c, d uint64, errno unix.Errno, payload string) []byte {
	r := append([]byte(nil), head...)
	le := binary.LittleEndian
	for i, v := range []uint64{a, b, c, d} {
		le.PutUint64(r[24+8*i:], v)
	}
	le.PutUint32(r[56:], uint32(len(payload)))
	le.PutUint32(r[60:], uint32(errno))
	return append(r, payload...)
}

// answer serves one request; more is false to end the connection.
func (d *wireDaemon) answer(c *net.UnixConn, head []byte, payload string) (more bool, err error) {
	le := binary.LittleEndian
	op, arg := le.Uint16(head[6:]), le.Uint64(head[24:])
	if le.Uint32(head) != 0x414d5344 || le.Uint16(head[4:]) != 1 || int(le.Uint32(head[56:])) != len(payload) {
		return false, errors.New("a bad header")
	}
	var r []byte
	switch op {
	case 1: // ATTACH
		return d.attach(c, head, payload)
	case 2: // TRACK
		switch at := le.Uint64(head[16:]); {
		case at == endsAtTrack:
			return false, nil
		case at == untracked:
			r = reply(head, 0, 0, 0, 0, unix.EINVAL, "no userfaultfd of yours")
		case at == watched && !d.watched:
			return false, errors.New("TRACK without a descriptor")
		default:
			r = reply(head, 3, 0, 0, 0, 0, "")
		}
	case 5: // ACQUIRE
		r = reply(head, 0, 0, 0, 0, unix.ETIMEDOUT, "the home does not answer")
	case 6: // SYNC
		r = reply(head, 5, 0, 0, 0, 0, "")
	case 7: // WAIT
		return d.wait(c, head, arg)
	case 8: // STATS
		r = reply(head, 0, 0, 0, 0, 0, "version 42\n"+strings.Repeat("x", 4096-11))
	case 10: // CREATE
		return false, nil
	case 11: // RESIZE
		if le.Uint64(head[16:]) == endsAtResize {
			return false, nil
		}
		r = reply(head, arg, 0, 0, 0, 0, "")
	case 20: // WATCH
		r = reply(head, 0, 0, 0, 0, unix.EINVAL, "no header pages here")
	default:
		r = reply(head, 0, 0, 0, 0, 0, "")
	}
	_, err = c.Write(r)
	return true, err
}

// wait collects all requests, then answers the last first; those of other
// versions it never answers, and hangs up on the last of them.
func (d *wireDaemon) wait(c *net.UnixConn, head []byte, version uint64) (more bool, err error) {
	switch version {
	case 7: // a reply that nobody asked for, then that it took too long
		stray := reply(head, 7, 0, 0, 0, 0, "")
		binary.LittleEndian.PutUint64(stray[8:], 1<<63)
		_, err := c.Write(stray)
		if err == nil {
			_, err = c.Write(reply(head, 0, 0, 0, 0, unix.ETIMEDOUT, "it has no such version yet"))
		}
		return true, err
	case 13:
		d.unanswered++
		return d.unanswered < wireThreads, nil
	}
	d.waiting = append(d.waiting, reply(head, version, 0, 0, 0, 0, ""))
	for i := len(d.waiting) - 1; i >= 0 && len(d.waiting) == wireThreads; i-- {
		if _, err := c.Write(d.waiting[i]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Attachments with which something is wrong.
const (
	untracked = iota + 2
	watched
	endsAtTrack
	endsAtResize
)

// attach answers by the path.
func (d *wireDaemon) attach(c *net.UnixConn, head []byte, path string) (more bool, err error) {
	var r []byte
	again := d.seen[path]
	d.seen[path] = true
	ids := map[string]uint64{"/untracked": untracked, "/watched": watched, "/ends-at-track": endsAtTrack, "/ends-at-resize": endsAtResize}
	binary.LittleEndian.PutUint64(head[16:], max(1, ids[path]))
	switch path {
	case "/forbidden":
		r = reply(head, 0, 0, 0, 0, unix.EPERM, "/forbidden: you may not")
	case "/denied":
		r = reply(head, 0, 0, 0, 0, unix.EACCES, "/denied: mode 0600 does not let you")
	case "/nothing":
		r = reply(head, 4096, 9, 1, 2, 0, "")
	case "/garbage":
		r = []byte("no header")
	case "/ends-at-resize", "/ends-after-resize", "/ends-at-track", "/untracked", "/watched", "/w":
		switch {
		case again && path == "/ends-after-resize":
			return false, nil
		case again && path == "/ends-at-resize":
			_, err = c.Write(reply(head, 0, 0, 0, 0, unix.EPERM, "it is not yours any more"))
			return true, err
		}
		return true, sendMemory(c, reply(head, 3*4096, 9, 3, 1, 0, ""))
	default:
		r = reply(head, 0, 0, 0, 0, unix.ENOENT, path)
	}
	_, err = c.Write(r)
	return true, err
}

// sendMemory sends a reply with a memfd of three pages.
func sendMemory(c *net.UnixConn, packet []byte) error {
	fd, err := unix.MemfdCreate("wire", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "memfd")
	_, err = f.WriteAt([]byte("as the daemon has it"), 0)
	err = errors.Join(err, f.Truncate(3*4096))
	if err == nil {
		_, _, err = c.WriteMsgUnix(packet, unix.UnixRights(fd), nil)
	}
	return errors.Join(err, f.Close())
}

// TestHeaderOnTheWire compares dsmfs.h with the protocol, with the sanitizers.
func TestHeaderOnTheWire(t *testing.T) {
	for _, flags := range []string{"-std=c99 -O2", "-O1 -fsanitize=address,undefined", "-O1 -fsanitize=thread"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			api, lost := compile(t, flags, "include/test/api.c"), compile(t, flags, "include/test/lost.c")
			runProgram(t, nil, api, "wire", startWireDaemon(t))
			runProgram(t, nil, lost, "wire", startWireDaemon(t))
			runProgram(t, nil, lost, "forbidden", startWireDaemon(t))
		})
	}
}

// TestHeaderIsCPlusPlus compiles the declarations as C++ and as strict C.
func TestHeaderIsCPlusPlus(t *testing.T) {
	source := filepath.Join(t.TempDir(), "a.cc")
	header, err := filepath.Abs("../../include/dsmfs.h")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte("#include \""+header+"\"\nint f(dsmfs *a) { return dsmfs_detach(a); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"c++", "-x", "c++"}, {"cc", "-x", "c", "-std=c99", "-Wpedantic"}} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Skipf("no C++ compiler: %v", err)
		}
		args = append(args, "-Wall", "-Wextra", "-Werror", "-c", source, "-o", source+".o")
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, text)
		}
	}
}
