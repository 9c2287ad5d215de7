package harvest

import (
	"io"
	"os"
	"testing"
	"time"
)

func newTestAlarm(t *testing.T) (a *alarm, in, toIn *os.File) {
	t.Helper()
	in, toIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a, err = newAlarm(int(in.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.close()
		in.Close()
		toIn.Close()
	})
	return a, in, toIn
}

func wantWait(t *testing.T, a *alarm, d time.Duration, input bool) {
	t.Helper()
	if got, err := a.wait(d); err != nil || got != input {
		t.Fatalf("wait %v: input %v, %v; want %v", d, got, err, input)
	}
}

// TestAlarm: input ends a wait, also one without a time, as long as it is not read; else the time
// does, and a time that is past counts for no later wait.
func TestAlarm(t *testing.T) {
	a, in, toIn := newTestAlarm(t)
	for range 3 {
		began := time.Now()
		wantWait(t, a, 5*time.Millisecond, false)
		if took := time.Since(began); took < 5*time.Millisecond {
			t.Errorf("waited %v for 5ms", took)
		}
	}
	wantWait(t, a, 0, false)
	for range 3 {
		done := make(chan error)
		go func() {
			_, err := toIn.Write([]byte("x"))
			done <- err
		}()
		wantWait(t, a, never, true)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantWait(t, a, time.Hour, true)
		if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		wantWait(t, a, time.Millisecond, false)
	}
	toIn.Close()
	wantWait(t, a, never, true) // the end of the input
}
