package main

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// FuzzOptions gives mount options: nothing panics, and what is accepted makes sense.
func FuzzOptions(f *testing.F) {
	for _, list := range []string{"join=host:1,listen=[::1]:0", "memory=1.5GiB,fault_timeout=3s", "rw,_netdev,x-systemd.automount", "insecure,allow_other=false", "lease=1s,tracking=compare,log-level=debug",
		"join=,", "memory=", "advertise=a:b:c", "nonsense=1"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		var c mountConfig
		flags := pflag.NewFlagSet("mount", pflag.ContinueOnError)
		flags.SetOutput(io.Discard)
		registerMountFlags(flags, &c)
		c.point = "/mnt/dsm"
		if applyOptions(flags, []string{list}) != nil || strings.HasPrefix(c.token, "@") || c.check(flags.Changed("listen")) != nil { // @ names a file
			return
		}
		if _, port, err := net.SplitHostPort(c.listen); err != nil || port == "" || c.memory < 0 {
			t.Errorf("-o %q gives %+v", list, c)
		}
	})
}

// FuzzAddress completes addresses: what is complete stays as it is.
func FuzzAddress(f *testing.F) {
	for _, addr := range []string{"host", "host:1", ":7480", "::1", "[::1]", "[::1]:7", "1.2.3.4:0", "[", "a:b:c", ""} {
		f.Add("join", addr)
		f.Add("listen", addr)
	}
	f.Fuzz(func(t *testing.T, flag, addr string) {
		full, err := withPort(flag, addr)
		if err != nil {
			return
		}
		if again, err := withPort(flag, full); err != nil || again != full {
			t.Errorf("--%s %q is %q, and then %q, %v", flag, addr, full, again, err)
		}
		_ = isLoopback(full)
	})
}
