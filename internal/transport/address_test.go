package transport

import "testing"

// FuzzNodeAddr splits addresses of nodes, as raft passes them on.
func FuzzNodeAddr(f *testing.F) {
	f.Add("0000000000000007@host:1")
	f.Add("host:1")
	f.Add("@")
	f.Fuzz(func(t *testing.T, s string) {
		id, addr, err := SplitNodeAddr(s)
		if err != nil || id == 0 {
			return
		}
		if again, a, err := SplitNodeAddr(NodeAddr(id, addr)); err != nil || again != id || a != addr {
			t.Errorf("%q is %v at %q, which is %v at %q, %v", s, id, addr, again, a, err)
		}
	})
}
