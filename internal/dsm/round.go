package dsm

import "fmt"

// RoundID names one round of a group: the step in which the members of the group put what they
// contribute to an area together.
type RoundID struct {
	Group AreaID // the file that names the group
	// Generation tells the lives of a group apart: a new one begins after it has been without members.
	// Number counts the rounds of a life, from 1.
	Generation uint64
	Number     uint64
}

// String returns the id as it appears in logs.
func (r RoundID) String() string {
	return fmt.Sprintf("%d.%d of group %d", r.Generation, r.Number, r.Group)
}

// Before reports whether r is an earlier round of the same group than o.
func (r RoundID) Before(o RoundID) bool {
	return r.Group == o.Group && (r.Generation < o.Generation || r.Generation == o.Generation && r.Number < o.Number)
}
