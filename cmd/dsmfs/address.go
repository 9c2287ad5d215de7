package main

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// defaultPort is the port on which a node listens, and on which others look for it, unless told
// otherwise.
const defaultPort = "7480"

// withPort adds the default port to a host that has none. IPv6 addresses may
// come with or without brackets.
func withPort(flag, addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		bare := strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
		if strings.Contains(bare, ":") && net.ParseIP(bare) == nil || strings.ContainsAny(bare, "[]") || bare == "" {
			return "", fail(exitUsage, "--%s %q is no address: want HOST or HOST:PORT", flag, addr)
		}
		host, port = bare, defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || flag != "listen" && n == 0 {
		return "", fail(exitUsage, "--%s %q: %q is no port", flag, addr, port)
	}
	if flag == "join" && host == "" {
		return "", fail(exitUsage, "--join %q names no host", addr)
	}
	return net.JoinHostPort(host, port), nil
}

// isLoopback reports whether an address of --listen or --join reaches this machine only. A name
// other than localhost counts as another machine. So does a missing host, with which a node listens
// on every interface.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
