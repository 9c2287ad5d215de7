package dsm

import "time"

// Version is a reading of a hybrid logical clock (Kulkarni et al., "Logical Physical Clocks",
// 2014). The upper 52 bits are microseconds since the Unix epoch, the lower 12 count events within
// a microsecond. Homes assign versions; within an extent they strictly grow. Zero is before every
// publish: the page is still all zeroes.
type Version uint64

const versionLogicalBits = 12

// MaxVersion bounds the versions that a node takes from others. It is of the year 2103, with room behind it for a million publishes a second
// for ages: versions only grow, so after one at the end of the number no home could make another.
const MaxVersion = Version(1<<64 - 1<<60)

// VersionAt returns the first version of the microsecond of t.
func VersionAt(t time.Time) Version { return Version(t.UnixMicro()) << versionLogicalBits }

// Time returns when the version was made, to the microsecond, by the clock of
// the home that made it. The zero version has the zero time.
func (v Version) Time() time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(v >> versionLogicalBits))
}

// Next returns the version of a publish at now: later than v and, where the
// clock allows, equal to now.
func (v Version) Next(now time.Time) Version { return max(v+1, VersionAt(now)) }
