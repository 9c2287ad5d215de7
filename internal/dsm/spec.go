package dsm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is the consistency mode of an area.
type Mode uint8

const (
	// ModeRelaxed lets any node write at any time; publishes are merged.
	ModeRelaxed Mode = iota
	// ModeVersioned lets one node write, the owner. What it publishes is a version, which others see
	// whole or not at all.
	ModeVersioned
)

var modeNames = []string{"relaxed", "versioned"}

// MergeRule decides the result where several nodes changed the same element.
type MergeRule uint8

const (
	// MergeLast keeps the value published last.
	MergeLast MergeRule = iota
	// MergeSum adds up what every node added.
	MergeSum
	// MergeMean adds up what every node added, too; but a round adds the mean of what its writers added.
	MergeMean
	// MergeMin keeps the smallest value.
	MergeMin
	// MergeMax keeps the largest value.
	MergeMax
)

var mergeNames = []string{"last", "sum", "mean", "min", "max"}

// Adds reports whether elements merge by what was added to them: a store that takes an update back then sends the
// opposite of the update.
func (m MergeRule) Adds() bool { return m == MergeSum || m == MergeMean }

// Valid reports whether m is a rule that this version knows.
func (m MergeRule) Valid() bool { return int(m) < len(mergeNames) }

// DType is the type of an area's elements.
type DType uint8

// DTypeAuto takes the type from the file's own header if it has one; else
// elements are bytes.
const (
	DTypeAuto DType = iota
	DTypeF64
	DTypeF32
	DTypeF16
	DTypeBF16
	DTypeI8
	DTypeI16
	DTypeI32
	DTypeI64
	DTypeU8
	DTypeU16
	DTypeU32
	DTypeU64
)

var dtypeNames = []string{"auto", "f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}
var dtypeSizes = []int{1, 8, 4, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8}

// Apply says when updates of other nodes enter the memory of local programs.
type Apply uint8

const (
	// ApplyAuto is ApplySync for sum and mean, and ApplyArrival for the other rules.
	ApplyAuto Apply = iota
	// ApplyArrival merges updates as they come.
	ApplyArrival
	// ApplySync merges updates only inside a local program's own sync call
	// while the node has writers; a node without writers applies on arrival.
	ApplySync
)

var applyNames = []string{"auto", "arrival", "sync"}

// Residency decides how much of an area a node keeps while its programs use the area.
type Residency uint8

const (
	// ResidencyFull keeps all of it: it must fit in every node's budget.
	ResidencyFull Residency = iota
	// ResidencyDemand fetches pages when programs touch them, and gives pages back when they are
	// not needed. Each home must have memory for its share of the area; no node needs room for all
	// of it.
	ResidencyDemand
)

var residencyNames = []string{"full", "demand"}

// Access says how a mount serves plain opens of a file.
type Access uint8

const (
	// AccessCached goes through the kernel's page cache of the mount.
	AccessCached Access = iota
	// AccessDirect gives programs the working copy itself (FUSE passthrough, root only).
	AccessDirect
)

// ByMount stands in place of a process where the mount itself attaches an area, for programs to which AccessDirect gives its memory.
const ByMount = -1

var accessNames = []string{"cached", "direct"}

// Locks says what locks of a file do besides excluding others.
type Locks uint8

const (
	// LocksMeet makes them points where nodes meet: to get one acquires, to give one up publishes.
	LocksMeet Locks = iota
	// LocksPlain makes them nothing else: for programs that lock a file to guard something else.
	LocksPlain
)

var locksNames = []string{"meet", "plain"}

// NonFinite says what becomes of floats that programs store and that are infinite or not a number.
type NonFinite uint8

const (
	// NonFiniteCount publishes them like others, and counts them.
	NonFiniteCount NonFinite = iota
	// NonFiniteRefuse publishes none.
	NonFiniteRefuse
)

var nonFiniteNames = []string{"count", "refuse"}

// DefaultInterval is the period at which unpublished stores are published.
const DefaultInterval = 100 * time.Millisecond

// MaxInterval bounds the interval.
const MaxInterval = time.Hour

// MinStaleness and MaxStaleness limit the bound on how much older what a program reads may be than what was published.
const (
	MinStaleness = time.Millisecond
	MaxStaleness = time.Hour
)

// Spec is what the user chose for an area: the values of user.dsm.*, and all else that says where its extents live. A directory has one too, which
// entries created in it inherit.
type Spec struct {
	Mode        Mode
	Merge       MergeRule
	DType       DType
	Apply       Apply
	Residency   Residency
	Access      Access
	Locks       Locks
	OnNonFinite NonFinite
	Retain      uint8         // of a versioned area: how many versions stay readable; 0: DefaultRetain
	Replicas    uint8         // how many nodes keep what the home has, the home included; 0: DefaultReplicas
	Interval    time.Duration // 0: publish on request only
	Placement   Placement
	Staleness   time.Duration // 0: no bound

	Detours Detours // of a file: the catalog's own, when it grows while members are gone
}

// DefaultSpec is the spec of the root directory of a new cluster.
func DefaultSpec() Spec { return Spec{Interval: DefaultInterval} }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

func parse(what string, names []string, s string) (uint8, error) {
	if i := slices.Index(names, s); i >= 0 {
		return uint8(i), nil
	}
	return 0, fmt.Errorf("unknown %s %q: want one of %s", what, s, strings.Join(names, " "))
}

func (m Mode) String() string      { return name(modeNames, int(m)) }
func (m MergeRule) String() string { return name(mergeNames, int(m)) }
func (d DType) String() string     { return name(dtypeNames, int(d)) }
func (a Apply) String() string     { return name(applyNames, int(a)) }
func (r Residency) String() string { return name(residencyNames, int(r)) }
func (a Access) String() string    { return name(accessNames, int(a)) }
func (l Locks) String() string     { return name(locksNames, int(l)) }
func (f NonFinite) String() string { return name(nonFiniteNames, int(f)) }

// Valid reports whether d is a type that this version knows.
func (d DType) Valid() bool { return int(d) < len(dtypeNames) }

// Size returns the bytes of an element; 1 for auto.
func (d DType) Size() int { return dtypeSizes[d] }

// ParseMode reads a consistency mode; the error lists the known ones.
func ParseMode(s string) (Mode, error) { v, err := parse("mode", modeNames, s); return Mode(v), err }

// ParseMerge reads a merge rule; the error lists the known ones.
func ParseMerge(s string) (MergeRule, error) {
	v, err := parse("merge rule", mergeNames, s)
	return MergeRule(v), err
}

// ParseDType reads an element type; the error lists the known ones.
func ParseDType(s string) (DType, error) {
	v, err := parse("dtype", dtypeNames, s)
	return DType(v), err
}

// ParseApply reads an apply policy; the error lists the known ones.
func ParseApply(s string) (Apply, error) {
	v, err := parse("apply policy", applyNames, s)
	return Apply(v), err
}

// ParseResidency reads a residency; the error lists the known ones.
func ParseResidency(s string) (Residency, error) {
	v, err := parse("residency", residencyNames, s)
	return Residency(v), err
}

// ParseAccess reads a way of access; the error lists the known ones.
func ParseAccess(s string) (Access, error) {
	v, err := parse("access", accessNames, s)
	return Access(v), err
}

// ParseLocks reads what locks do.
func ParseLocks(s string) (Locks, error) {
	v, err := parse("kind of locks", locksNames, s)
	return Locks(v), err
}

// ParseNonFinite reads what becomes of floats that are not finite.
func ParseNonFinite(s string) (NonFinite, error) {
	v, err := parse("on_nonfinite", nonFiniteNames, s)
	return NonFinite(v), err
}

// AppliesInSync reports whether updates of other nodes enter memory only in sync calls of the
// programs that store to it. This is the default for sum and mean: a program loads an element, adds to it
// and stores it back. If an update came in between, the store would take the update back again, and
// the next publish would send that as a difference. With min and max the home keeps the update whatever is
// stored over it, so there updates need not wait.
func (s Spec) AppliesInSync() bool {
	return s.Apply == ApplySync || s.Apply == ApplyAuto && s.Merge.Adds()
}

// Forfeits reports whether what programs have stored is given up when the cluster drops locks that they believe to have: the last store wins, in
// a file whose locks are points where nodes meet.
func (s Spec) Forfeits() bool {
	return s.Merge == MergeLast && s.Mode != ModeVersioned && s.Locks != LocksPlain
}

// Every is how often what is stored is published without being asked for; 0: never. A version is made on request only.
func (s Spec) Every() time.Duration {
	if s.Mode == ModeVersioned {
		return 0
	}
	return s.Interval
}

// DefaultRetain is how many versions of a versioned area stay readable: the newest and the one before.
const DefaultRetain = 2

// MaxRetain bounds how many versions stay readable without being pinned.
const MaxRetain = 64

// Retained returns how many versions of a versioned area stay readable, the newest included.
func (s Spec) Retained() int {
	if s.Retain == 0 {
		return DefaultRetain
	}
	return int(s.Retain)
}

// Valid reports whether every field of s is one this version knows.
func (s Spec) Valid() bool {
	return int(s.Mode) < len(modeNames) && int(s.Merge) < len(mergeNames) && int(s.DType) < len(dtypeNames) &&
		int(s.Apply) < len(applyNames) && s.Interval >= 0 && s.Interval <= MaxInterval &&
		int(s.Residency) < len(residencyNames) && int(s.Access) < len(accessNames) && int(s.Locks) < len(locksNames) &&
		s.Placement.Valid() && (s.Staleness == 0 || s.Staleness >= MinStaleness && s.Staleness <= MaxStaleness) && s.Retain <= MaxRetain &&
		s.Replicas <= MostReplicas && int(s.OnNonFinite) < len(nonFiniteNames) && s.Detours.Valid() && s.conflict() == nil
}

// conflict returns why two of the settings do not go together, or nil.
func (s Spec) conflict() error {
	if s.Staleness > 0 && s.Mode != ModeRelaxed {
		return fmt.Errorf("a bound on staleness is for areas of mode relaxed, not %s", s.Mode)
	}
	if s.Staleness > 0 && s.Access == AccessDirect {
		return errors.New("a bound on staleness is for areas of access cached: programs read a direct one without asking anybody, so no read could be held up")
	}
	if s.Mode == ModeVersioned {
		switch {
		case s.OnNonFinite == NonFiniteRefuse:
			return errors.New("on_nonfinite refuse is for areas of mode relaxed: a version is published whole, so no element of it can be left out")
		case s.Merge != MergeLast:
			return fmt.Errorf("merge %s is for areas of mode relaxed: of a versioned area there is one writer, and nothing to merge", s.Merge)
		case s.Residency != ResidencyFull || s.Access != AccessCached:
			return errors.New("a versioned area has residency full and access cached: each node keeps whole versions of it")
		case s.Placement != PlaceAuto:
			return errors.New("a versioned area has placement auto: its home is its owner")
		case s.Apply == ApplySync:
			return errors.New("apply sync is for areas of mode relaxed: the owner of a versioned area gets no updates, and nobody else stores")
		}
	}
	if s.Residency == ResidencyFull {
		return nil
	}
	if s.Access == AccessDirect {
		return errors.New("access direct is for areas of residency full: a program that has the memory itself, with nobody to fetch what is missing, would read zeroes")
	}
	if s.Placement != PlaceAuto && s.Placement != PlaceSpread {
		return fmt.Errorf("placement %s is for areas of residency full: memory for areas on demand is reserved at each home by its part of the slots, so they are always spread", s.Placement)
	}
	return nil
}
