package transport

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Two nodes of one user on one machine need neither certificates nor encryption: the kernel says
// whose socket the other end is. Only loopback addresses are looked at, which nobody can have from
// outside. /proc/net/tcp has all sockets of this network namespace.

// The states of a socket in /proc/net/tcp.
const (
	established = "01"
	listening   = "0A"
)

// sameUser reports whether the other end of c is a socket of this process's user on this machine. It
// must have been accepted there: before, it has no owner.
func sameUser(c net.Conn) bool {
	mine, other, ok := loopbackEnds(c)
	if !ok {
		return false
	}
	found := false
	for _, s := range sockets() {
		// A socket that its process has closed has no inode, and is listed as root's.
		if s.local == other && s.remote == mine && s.state == established && s.inode != "0" {
			if s.uid != os.Geteuid() {
				return false
			}
			found = true
		}
	}
	return found
}

// listensHere reports whether it is this process's user that listens at the other end of c, which
// was dialed.
func listensHere(c net.Conn) bool {
	_, other, ok := loopbackEnds(c)
	if !ok {
		return false
	}
	exact, any := []int(nil), []int(nil)
	for _, s := range sockets() {
		switch {
		case s.state != listening || s.local.Port() != other.Port():
		case s.local.Addr() == other.Addr():
			exact = append(exact, s.uid)
		case s.local.Addr().IsUnspecified():
			any = append(any, s.uid)
		}
	}
	if len(exact) == 0 {
		exact = any // the kernel prefers the address to all addresses
	}
	for _, uid := range exact {
		if uid != os.Geteuid() {
			return false
		}
	}
	return len(exact) > 0
}

// loopbackEnds returns the two addresses of c if both are loopback addresses.
func loopbackEnds(c net.Conn) (mine, other netip.AddrPort, ok bool) {
	l, lok := c.LocalAddr().(*net.TCPAddr)
	r, rok := c.RemoteAddr().(*net.TCPAddr)
	if !lok || !rok || !l.IP.IsLoopback() || !r.IP.IsLoopback() {
		return mine, other, false
	}
	plain := func(a *net.TCPAddr) netip.AddrPort {
		p := a.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return plain(l), plain(r), true
}

// socket is a line of /proc/net/tcp.
type socket struct {
	local, remote netip.AddrPort
	state         string
	uid           int
	inode         string
}

// sockets returns the TCP sockets of this network namespace; none if the kernel does not tell.
func sockets() []socket {
	var all []socket
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // without IPv6 there is no second file
		}
		for line := range bytes.Lines(text) {
			if s, ok := parseSocket(string(line)); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

func parseSocket(line string) (s socket, ok bool) {
	f := strings.Fields(line) // number, local, remote, state, queues, timer, retransmits, uid, timeout, inode
	if len(f) < 10 {
		return s, false
	}
	var lok, rok bool
	s.local, lok = parseEnd(f[1])
	s.remote, rok = parseEnd(f[2])
	uid, err := strconv.Atoi(f[7])
	s.state, s.uid, s.inode = f[3], uid, f[9]
	return s, lok && rok && err == nil
}

// parseEnd reads an address and port in hexadecimal digits. The address is in words as the processor
// has them.
func parseEnd(text string) (netip.AddrPort, bool) {
	const word = 8 // digits
	n := strings.IndexByte(text, ':')
	if n != word && n != 4*word {
		return netip.AddrPort{}, false
	}
	var raw []byte
	for i := 0; i < n; i += word {
		w, err := strconv.ParseUint(text[i:i+word], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		raw = binary.NativeEndian.AppendUint32(raw, uint32(w))
	}
	port, err := strconv.ParseUint(text[n+1:], 16, 16)
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), err == nil && ok
}
