package dsm

import "testing"

// FuzzSetting sets what a program gives for a setting: what is accepted can be shown, and set again.
func FuzzSetting(f *testing.F) {
	for _, value := range []string{"auto", "versioned", "sum", "f32", "sync", "250ms", "10", "demand", "direct", "plain", "home=3", "node-1", "none", "1h", "3", "-1", "9223372036854775807"} {
		for i := range SettingKeys {
			f.Add(byte(i), value)
		}
	}
	f.Fuzz(func(t *testing.T, i byte, value string) {
		key := SettingKeys[int(i)%len(SettingKeys)]
		s, err := DefaultSpec().With(key, value)
		if err != nil {
			return
		}
		shown, ok := s.Setting(key)
		if !ok {
			t.Fatalf("%s was set to %q, and is not shown", key, value)
		}
		if again, err := s.With(key, shown); err != nil || again != s {
			t.Errorf("%s is shown as %q: %v, %+v, want %+v", key, shown, err, again, s)
		}
	})
}

// FuzzNodeID reads ids as they stand in addresses and in gossip.
func FuzzNodeID(f *testing.F) {
	f.Add("0000000000000007")
	f.Add("+7")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseNodeID(s)
		if err != nil {
			return
		}
		if again, err := ParseNodeID(id.String()); err != nil || again != id {
			t.Errorf("%q is %v, which is %v (%v)", s, id, again, err)
		}
	})
}
