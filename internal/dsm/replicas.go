package dsm

// The bytes of an area are at its home, and at backups that take over when the home dies. How many copies there are in all is a matter
// of the area. A backup keeps whole slots, so areas of different numbers of copies hash to different slots: each number has a class.

const (
	// MostReplicas is how many copies of an area's bytes there are at most.
	MostReplicas = 3
	// DefaultReplicas is how many there are unless the user says otherwise.
	DefaultReplicas = 2
)

// Copies returns how many nodes are to keep the area's bytes, the home included. There are fewer while there are not so many members.
func (s Spec) Copies() int {
	if s.Replicas == 0 {
		return DefaultReplicas
	}
	return int(s.Replicas)
}

// Class is the slots of the areas with one number of copies.
type Class struct {
	Copies int
	First  Slot
	Slots  int
	step   uint64 // from an extent to the next: odd, no multiple of 3, near Slots/phi, so that it visits every slot
}

// Classes are all classes. Most slots are of the one that most areas have.
var Classes = func() (all [MostReplicas]Class) {
	all[0] = Class{Copies: DefaultReplicas, Slots: 384, step: 235}
	i := 1
	for copies := 1; copies <= MostReplicas; copies++ {
		if copies != DefaultReplicas {
			all[i] = Class{Copies: copies, First: all[i-1].First + Slot(all[i-1].Slots), Slots: 64, step: 41}
			i++
		}
	}
	return all
}()

// ClassOf returns the class of the areas with so many copies.
func ClassOf(copies int) Class {
	for _, c := range Classes[1:] {
		if c.Copies == copies {
			return c
		}
	}
	return Classes[0]
}

// CopiesOf returns how many copies there are to be of a slot that areas share.
func CopiesOf(s Slot) int {
	for _, c := range Classes {
		if int(s) < int(c.First)+c.Slots {
			return c.Copies
		}
	}
	return 1
}

// SlotOf hashes an extent to its slot. Extents of one area are spread evenly:
// consecutive extents go to slots a golden-ratio step apart, so that even an
// area of a few extents is homed on several nodes.
func (c Class) SlotOf(a AreaID, e ExtentIndex) Slot {
	h := uint64(a)*0x9e3779b97f4a7c15 ^ uint64(a)>>29
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 32
	return c.First + Slot((h%uint64(c.Slots)+uint64(e)*c.step)%uint64(c.Slots))
}

// SlotOf returns the slot of an extent of an area with the default number of copies.
func SlotOf(a AreaID, e ExtentIndex) Slot { return Classes[0].SlotOf(a, e) }
