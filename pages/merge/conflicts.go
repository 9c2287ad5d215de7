package merge

import "github.com/dsmfs/dsmfs/internal/dsm"

// Differing finds the elements of page p that differ. It returns their ranges as offsets in the page.
func (k Kernel) Differing(p dsm.PageIndex, one, other []byte) (found Runs) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		for at := s.from; at < s.to; at += s.unit {
			if string(one[at:at+s.unit]) != string(other[at:at+s.unit]) {
				found.Add(int64(at), int64(s.unit))
			}
		}
	}
	return found
}

// Conflicts finds the elements of page p that both sides have changed since base, to different values: this node in working, the others in
// incoming. Only elements with the rule last are looked at: the other rules make one value of both. It returns their ranges as offsets in
// the page. No argument is changed.
func (k Kernel) Conflicts(p dsm.PageIndex, base, working, incoming []byte) (found Runs) {
	var buf few
	for _, s := range k.sections(p, buf[:0]) {
		if s.op != opLast || string(base[s.from:s.to]) == string(incoming[s.from:s.to]) {
			continue
		}
		for at := s.from; at < s.to; at += s.unit {
			b, w, n := base[at:at+s.unit], working[at:at+s.unit], incoming[at:at+s.unit]
			if string(w) != string(b) && string(n) != string(b) && string(w) != string(n) {
				found.Add(int64(at), int64(s.unit))
			}
		}
	}
	return found
}
