package transport

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// NodeAddr names a node together with its address: "id@host:port". Every other node at that address
// refuses such a connection, for instance a later incarnation on the same machine. Raft needs its
// servers named like this: an incarnation that forgot its log must not answer for the one that had
// it.
func NodeAddr(id dsm.NodeID, addr string) string { return id.String() + "@" + addr }

// SplitNodeAddr splits a NodeAddr. For a plain host:port the id is 0.
func SplitNodeAddr(s string) (dsm.NodeID, string, error) {
	before, addr, ok := strings.Cut(s, "@")
	if !ok {
		return 0, s, nil
	}
	id, err := dsm.ParseNodeID(before)
	if err != nil {
		return 0, "", errs.E(errs.Invalid, "address", "%w", err)
	}
	return id, addr, nil
}

// bindHeld is bind for a node whose process may be followed by another while it cannot end yet: both may have the port, until the sockets of the
// dead one are shut: the kernel gives each a part of what comes. With heir it is that other.
func bindHeld(listen string, heir bool) (net.Listener, *net.UDPConn, error) {
	if !heir { // as long as nobody else has it
		l, u, err := bind(listen, nil)
		if err != nil {
			return nil, nil, err
		}
		listen = l.Addr().String()
		l.Close()
		u.Close()
	}
	return bind(listen, reusePort)
}

// bind opens the TCP and the UDP socket on one port. control, if not nil, sets their options.
func bind(listen string, control func(network, addr string, c syscall.RawConn) error) (net.Listener, *net.UDPConn, error) {
	cfg := net.ListenConfig{Control: control}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, nil, errs.E(errs.Invalid, "listen", "address %q: want HOST:PORT", listen)
	}
	const attempts = 32 // ports that the kernel picked for TCP, but that are taken for UDP
	for i := 1; ; i++ {
		l, err := cfg.Listen(context.Background(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			return nil, nil, errs.E(errs.Other, "listen", "%w", err)
		}
		at := net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		u, err := cfg.ListenPacket(context.Background(), "udp", at)
		if err == nil {
			return l, u.(*net.UDPConn), nil
		}
		l.Close()
		if port != "0" || i == attempts {
			return nil, nil, errs.E(errs.Other, "listen", "%w", err)
		}
	}
}

// advertised returns the address that others should use, given the bound one.
func advertised(advertise string, bound *net.TCPAddr) (string, error) {
	port := strconv.Itoa(bound.Port)
	if advertise != "" {
		if _, _, err := net.SplitHostPort(advertise); err == nil {
			return advertise, nil
		}
		if strings.Contains(advertise, ":") && net.ParseIP(advertise) == nil {
			return "", errs.E(errs.Invalid, "advertise", "address %q: want HOST or HOST:PORT", advertise)
		}
		return net.JoinHostPort(advertise, port), nil
	}
	if !bound.IP.IsUnspecified() {
		return net.JoinHostPort(bound.IP.String(), port), nil
	}
	ip, err := machineIP()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(ip.String(), port), nil
}

// machineIP returns an address of this machine that others can reach: the first IPv4 address,
// otherwise the first IPv6 address, otherwise the loopback address.
func machineIP() (net.IP, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, errs.E(errs.Other, "advertise", "%w", fmt.Errorf("addresses of this machine: %w", err))
	}
	best := net.IPv4(127, 0, 0, 1)
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP, nil
		}
		if best.IsLoopback() {
			best = n.IP
		}
	}
	return best, nil
}
