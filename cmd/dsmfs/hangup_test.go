package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sharing lets others listen on the same port.
var sharing = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(err, failed)
}}

// atVariable says where listenAndHang listens for programs.
const atVariable = "DSMFS_TEST_AT"

// listenAndHang takes one connection of the network and one of a program, prints its address before, and does nothing more.
func listenAndHang() {
	l, err := sharing.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	if _, err := sharing.ListenPacket(context.Background(), "udp", l.Addr().String()); err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	if _, err := l.Accept(); err != nil {
		panic(err)
	}
	programs, err := net.Listen("unixpacket", os.Getenv(atVariable))
	if err != nil {
		panic(err)
	}
	fmt.Println("taken")
	if _, err := programs.Accept(); err != nil {
		panic(err)
	}
	fmt.Println("taken")
	select {}
}

// TestHangUp: a process that does nothing any more has the port that its successor has, too. All that comes after its sockets were shut is for the successor.
func TestHangUp(t *testing.T) {
	must := musts(t)
	c := exec.Command(os.Args[0])
	at := filepath.Join(t.TempDir(), "attach")
	c.Env = append(os.Environ(), actVariable+"=listen", atVariable+"="+at)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(err)
	must(c.Start())
	defer func() { _, _ = c.Process.Kill(), c.Wait() }()
	lines := bufio.NewReader(out)
	addr, err := lines.ReadString('\n')
	must(err)
	addr = strings.TrimSpace(addr)
	before, err := net.Dial("tcp", addr)
	must(err)
	defer before.Close()
	_, err = lines.ReadString('\n') // it has taken it
	must(err)
	program, err := net.Dial("unixpacket", at)
	must(err)
	defer program.Close()
	_, err = lines.ReadString('\n')
	must(err)

	shut, err := hangUp(c.Process.Pid)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("descriptors of another process, by one of its threads (Linux 6.9, as --hold): %v", err)
	}
	if err != nil || shut != 4 {
		t.Fatalf("%d sockets: %v", shut, err)
	}
	must(before.SetReadDeadline(time.Now().Add(10 * time.Second)))
	if _, err := before.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection from before: %v", err)
	}
	must(program.SetReadDeadline(time.Now().Add(10 * time.Second)))
	if _, err := program.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection of a program: %v", err)
	}
	waits, err := net.Dial("unixpacket", at)
	if err != nil {
		t.Errorf("programs cannot connect any more: %v", err)
	} else {
		must(waits.Close())
	}
	l, err := sharing.Listen(t.Context(), "tcp", addr)
	must(err)
	defer l.Close()
	u, err := sharing.ListenPacket(t.Context(), "udp", addr)
	must(err)
	defer u.Close()
	must(l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second)))
	must(u.SetReadDeadline(time.Now().Add(10 * time.Second)))
	for range 50 { // from another port each
		to, err := net.Dial("tcp", addr)
		must(err)
		taken, err := l.Accept()
		must(err)
		must(errors.Join(to.Close(), taken.Close()))
		to, err = net.Dial("udp", addr)
		must(err)
		_, err = to.Write([]byte("a"))
		must(err)
		_, _, err = u.ReadFrom(make([]byte, 1))
		must(errors.Join(err, to.Close()))
	}
	if shut, err := hangUp(c.Process.Pid); err != nil || shut != 4 {
		t.Errorf("once more: %d sockets: %v", shut, err)
	}
}
