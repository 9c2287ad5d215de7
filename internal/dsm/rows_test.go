package dsm

import "testing"

// TestWithdraw: who has a slot when the daemon of a node was killed, and another has followed.
func TestWithdraw(t *testing.T) {
	const n, s, b, dead = 1, 2, 3, 4
	v := &View{Epoch: 9, Members: []Member{{ID: n}, {ID: s}, {ID: b}, {ID: dead, Gone: true}}}
	backups := func(list ...Backup) (all [MostBackups]Backup) {
		copy(all[:], list)
		return all
	}
	in := func(id NodeID) Backup { return Backup{Node: id, InSync: true} }
	here, going := func(list ...Backup) SlotHome {
		return SlotHome{Primary: n, Epoch: 8, Had: 8, Backups: backups(list...)}
	},
		func(to, from NodeID, list ...Backup) SlotHome {
			return SlotHome{Primary: to, Source: from, Epoch: 8, Had: 7, Backups: backups(list...)}
		}
	none, served, kept := LeftOver{}, LeftOver{Served: true}, LeftOver{Served: true, Kept: true}
	offered, keptToo := LeftOver{Served: true, Offered: true}, LeftOver{Served: true, Kept: true, Offered: true}
	for _, c := range []struct {
		what     string
		row      SlotHome
		left     LeftOver
		to, from NodeID
		has      bool
	}{
		{"another is the home", SlotHome{Primary: s, Backups: backups(in(n))}, none, s, 0, true},
		{"a backup in sync", here(in(b)), none, b, 0, true},
		{"a backup in sync, though the bytes are kept", here(in(b)), kept, n, 0, true},
		{"a backup that is being filled", here(Backup{Node: b}), none, n, 0, false},
		{"nobody else", here(), served, n, 0, false},
		{"nobody else, and the bytes are kept", here(), kept, n, 0, true},
		{"on its way there, from a backup in sync", going(n, s, in(s)), none, s, 0, true},
		{"on its way there, from one that is no backup", going(n, s, in(b), in(n)), none, s, 0, true},
		{"on its way there, and nobody is in sync", going(n, s, in(n)), none, s, 0, true},
		{"on its way there, from one that is dead", going(n, dead, in(b)), none, b, 0, true},
		{"on its way there, from one that is dead, and no backup", going(n, dead), none, n, dead, true},
		{"arrived, from a backup in sync", going(n, s, in(s)), served, s, 0, true},
		{"arrived, and another is a backup", going(n, s, in(b), in(n)), served, b, 0, true},
		{"arrived, and nobody is in sync", going(n, s, in(n)), served, n, 0, false},
		{"arrived, and the bytes are kept", going(n, s, Backup{Node: b}), kept, n, 0, true},
		{"on its way elsewhere, and a backup has it", going(s, n, in(n), in(b)), served, b, 0, true},
		{"on its way elsewhere, and a backup has it, though the bytes are kept", going(s, n, in(n), in(b)), kept, n, 0, true},
		{"sent elsewhere", going(s, n, in(n)), offered, s, 0, false},
		{"sent elsewhere, and the bytes are kept", going(s, n, in(n), in(b)), keptToo, s, n, true},
		{"sent to one that has died, and the bytes are kept", going(dead, n, in(n)), keptToo, dead, 0, true},
		{"sent to one that has died, and a backup has it", going(dead, n, in(n), in(b)), keptToo, b, 0, true},
		{"on its way elsewhere", going(s, n, in(n)), none, s, 0, false},
		{"on its way elsewhere, and the bytes are kept", going(s, n, in(n)), kept, n, 0, true},
	} {
		if has := c.row.Withdraw(v, n, c.left); has != c.has || c.row.Primary != c.to || c.row.Source != c.from || c.row.BackupOf(n) >= 0 {
			t.Errorf("%s: %v, %+v", c.what, has, c.row)
		}
	}
}
