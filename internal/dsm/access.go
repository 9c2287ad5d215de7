package dsm

import "slices"

// Credentials say on whose behalf a request is made.
type Credentials struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups
}

// Bits of the permissions that are wanted, as in a mode.
const (
	MayRead   = 4
	MayWrite  = 2
	MaySearch = 1
)

// May reports whether owner, group and mode of the inode allow all of want.
func (c *Credentials) May(i Inode, want uint32) bool {
	perm := i.Perm
	switch {
	case c.UID == 0:
		return true
	case c.UID == i.UID:
		perm >>= 6
	case c.In(i.GID):
		perm >>= 3
	}
	return perm&want == want
}

// In reports whether the credentials include the group.
func (c *Credentials) In(group uint32) bool {
	return c.GID == group || slices.Contains(c.Groups, group)
}
