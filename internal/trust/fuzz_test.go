package trust

import "testing"

// FuzzToken reads what somebody gives for a token.
func FuzzToken(f *testing.F) {
	f.Add(Token{Secret: make([]byte, secretSize)}.String())
	f.Add(tokenPrefix)
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			return
		}
		if again, err := ParseToken(token.String()); err != nil || again.CA != token.CA || string(again.Secret) != string(token.Secret) {
			t.Errorf("%q is %v, which is %v (%v)", s, token, again, err)
		}
	})
}
