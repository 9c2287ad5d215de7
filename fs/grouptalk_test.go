package fs

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestTalksOfAUser are bounded: each costs a goroutine. Other users have theirs, and what is closed counts no more.
func TestTalksOfAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridge(Config{Groups: struct{ Groups }{}, Log: slog.New(slog.DiscardHandler)})
		m := controlMount{b: b}
		var list []control.Talk
		open := func(uid uint32) error {
			talk, err := m.Talk(9, dsm.Credentials{UID: uid})
			if err == nil {
				list = append(list, talk)
			}
			return err
		}
		var err error
		for len(list) < 1<<14 && err == nil {
			err = open(7)
		}
		if most := len(list); most < 256 || !errors.Is(err, unix.EMFILE) {
			t.Errorf("%d descriptors, then %v", most, err)
		}
		if err := open(8); err != nil {
			t.Error(err)
		}
		list[0].End()
		synctest.Wait()
		if err := open(7); err != nil {
			t.Error(err)
		}
		if err := open(7); !errors.Is(err, unix.EMFILE) {
			t.Error(err)
		}
		for _, talk := range list {
			talk.End()
		}
		synctest.Wait()
	})
}

// TestTalkAfterARound that failed: if it is over all the same, the next call is of the next number, and else of the same.
func TestTalkAfterARound(t *testing.T) {
	for over, want := range map[uint64]uint64{3: 3, 0: 2} {
		talk := &groupTalk{number: 2}
		if _, err := talk.met(groups.Result{Number: over}, errs.E(errs.Unavailable, "round", "")); !errs.Is(err, errs.Unavailable) || talk.number != want {
			t.Errorf("after an error of round %d the last number is %d, want %d (%v)", over, talk.number, want, err)
		}
	}
}
