package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// The methods of held do nothing for a node that is not held.

// begin says in the log who takes over, and in what is kept for the next daemon where the log is.
func (h *held) begin(c *mountConfig, log *slog.Logger) error {
	if h.resuming {
		log.Warn("taking over from a daemon that has ended; its programs go on", "mount", c.point, "ended", h.before, "daemons", h.mem.Word(hold.Daemons).Load(), "version", programVersion())
		return nil
	}
	for t, s := range map[hold.Text]string{hold.Point: c.point, hold.State: c.state, hold.Log: c.logFile} {
		if err := h.mem.SetText(t, s); err != nil {
			return err
		}
	}
	return nil
}

// identify gives the node its identity, or that which it had.
func (h *held) identify(self *dsm.Member, listen *string) (seed []byte, err error) {
	switch {
	case h == nil:
		return nil, nil
	case h.resuming:
		self.ID, self.Inc, *listen = dsm.NodeID(h.mem.Word(hold.Node).Load()), h.mem.Word(hold.Inc).Load(), h.mem.Text(hold.Listen)
		return []byte(h.mem.Text(hold.Key)), nil
	}
	seed = make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	h.mem.Word(hold.Node).Store(uint64(self.ID))
	return seed, h.mem.SetText(hold.Key, string(seed))
}

// listening keeps where the node listens.
func (h *held) listening(addr string) error {
	if h == nil {
		return nil
	}
	return h.mem.SetText(hold.Listen, addr)
}

func (h *held) memory() *hold.Memory {
	if h == nil {
		return nil
	}
	return h.mem
}

// joined says that what programs had open is open again in the cluster that the node has joined once more. A daemon that is killed before is followed by one that joins again, too:
// only now is all of it held which locks are lost, and what is to be compared.
func (h *held) joined() {
	h.mem.Word(hold.Rejoining).Store(0)
}

// joinsAgain says that the node's catalog is another than that of the journal, because the node joins again: if the daemon is killed, the next one joins once more.
func (h *held) joinsAgain() {
	if h != nil {
		h.mem.Word(hold.Rejoining).Store(1)
	}
}

// store returns where the areas are held.
func (h *held) store(memory int64) (*pages.Keep, error) {
	if h == nil {
		return nil, nil
	}
	keep, err := pages.NewKeep(h.mem, h.files)
	if err == nil {
		keep.Linger(memory / lingerPart)
	}
	return keep, err
}

// viewChanged takes note of the keys, and of other members, of as many as there is room for.
func (h *held) viewChanged(v *dsm.View, self dsm.NodeID) error {
	if err := h.keysChanged(v); err != nil {
		return err
	}
	if h == nil || len(v.Members) <= 1 {
		if h != nil && len(v.Members) == 1 {
			h.mem.Word(hold.Left).Store(h.mem.Word(hold.Others).Load())
		}
		return nil
	}
	h.mem.Word(hold.Others).Store(1)
	h.mem.Word(hold.Left).Store(0)
	text := ""
	for _, m := range v.Members {
		if line := m.Addr + "\n"; m.ID != self && !m.Gone && len(text)+len(line) <= hold.MostReplaced {
			text += line
		}
	}
	if text == "" || text == h.mem.Text(hold.Members) {
		return nil
	}
	return h.mem.ReplaceText(hold.Members, text)
}

// heldKeys are those of a cluster that encrypts, as hold.Keys has them: see dsm.Trust.
type heldKeys struct {
	Cluster dsm.ClusterID
	CA      []byte
	CAKey   []byte
	Gossip  [][]byte
}

// keysChanged takes note of the keys of a cluster that encrypts.
func (h *held) keysChanged(v *dsm.View) error {
	if h == nil || v.Trust == nil {
		return nil
	}
	text, err := wire.Marshal(&heldKeys{Cluster: v.Cluster, CA: v.Trust.CA, CAKey: v.Trust.CAKey, Gossip: v.Trust.Gossip})
	if err != nil || string(text) == h.mem.Text(hold.Keys) {
		return err
	}
	return h.mem.ReplaceText(hold.Keys, string(text))
}

// believed returns a view that has only the keys of the cluster; nil if no daemon before has kept any. Only the other members can tell a new daemon who the
// members are, and to talk to them it needs the keys first.
func (h *held) believed() (*dsm.View, error) {
	if h == nil || !h.resuming {
		return nil, nil
	}
	text := h.mem.Text(hold.Keys)
	if text == "" {
		return nil, nil
	}
	var k heldKeys
	if err := wire.Unmarshal([]byte(text), &k); err != nil {
		return nil, fmt.Errorf("the keys that are held: %w", err)
	}
	return &dsm.View{Cluster: k.Cluster, Trust: &dsm.Trust{CA: k.CA, CAKey: k.CAKey, Gossip: k.Gossip}}, nil
}

// firstNumber returns the number after which what this daemon says is numbered: none before has used it.
func (h *held) firstNumber() uint64 {
	if h == nil {
		return 0
	}
	return h.mem.Word(hold.Daemons).Load() << 40
}

// noteMembers has the next daemon know who else is a member.
func (n *node) noteMembers(v *dsm.View) {
	if err := n.cfg.held.viewChanged(v, n.self.ID); err != nil {
		n.unheld(err.Error())
	}
}

// unheld says that no other daemon can follow this one.
func (n *node) unheld(why string) {
	if h := n.cfg.held; h != nil && h.mem.Word(hold.Refused).Swap(1) == 0 {
		n.lost.Store(&why)
		close(n.unfollowed)
		n.log.Warn("from now on the mount is lost if the daemon is killed, as with --hold=off", "why", why)
	}
}

// isFollowed reports whether another daemon follows this one if it is killed, as far as is known.
func (h *held) isFollowed() bool { return h != nil && h.mem.Word(hold.Refused).Load() == 0 }

// tellUnheld tells the cluster when no daemon follows this one, until ctx ends: the others would wait for one.
func (n *node) tellUnheld(ctx context.Context) {
	if !n.awaitUnheld(ctx) {
		return
	}
	for {
		if m, ok := n.cats.Current().Member(n.self.ID); ok && !m.Held {
			n.log.Info("the cluster knows that no daemon follows this one")
			return
		}
		err := n.cats.last().EndsWithDaemon(ctx)
		if err != nil {
			n.log.Debug("the cluster does not know yet that no daemon follows this one", "err", err)
		}
		if !sleep(ctx, rejoinMax/10) {
			return
		}
	}
}

// awaitUnheld waits until no daemon follows this one, as when the holder is killed: then the kernel sends a signal (start). It returns false if ctx ends.
func (n *node) awaitUnheld(ctx context.Context) bool {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	defer signal.Stop(woken)
	for {
		if h := n.cfg.held; h != nil && os.Getppid() != h.holder {
			n.unheld("the holder has ended")
		}
		select {
		case <-n.unfollowed:
			return true
		case <-ctx.Done():
			return false
		case <-woken:
		}
	}
}

// resume takes over from the daemon that was killed.
func (n *node) resume(ctx context.Context) error {
	var err error = errs.E(errs.Evicted, "resume", "")
	alone := false
	if n.cfg.held.mem.Word(hold.Rejoining).Load() == 0 {
		alone, err = n.cats.last().Resume(ctx, n.data.Served())
	}
	if errs.Is(err, errs.Evicted) {
		err = n.resumeAnew(ctx)
	}
	if err != nil {
		if errs.Is(err, errs.Busy) {
			n.cfg.held.mem.Word(hold.Refused).Store(1) // so that the holder tries no other daemon
		}
		return fmt.Errorf("resume the catalog: %w", err)
	}
	if alone && n.cfg.held.mem.Word(hold.Others).Load() != 0 {
		n.unheld("the other nodes have gone")
		return errs.E(errs.Busy, "resume", "the other nodes have gone: what they have published may be newer than what programs here have seen")
	}
	n.member = true
	n.Reset()
	if err := fs.LoseLocks(n.cfg.held.mem, n.locks, n.locksLost); err != nil { // before anything is published
		return fmt.Errorf("resume the locks: %w", err)
	}
	if err := n.data.Resume(ctx, alone, n.locksLost); err != nil {
		return fmt.Errorf("resume the files: %w", err)
	}
	close(n.resumed)
	n.data.Reset() // whatever came before is in this
	return nil
}

// resumeAnew takes over in a cluster that has taken the node for dead: it joins again, as another incarnation. Its locks are lost.
func (n *node) resumeAnew(ctx context.Context) error {
	h := n.cfg.held
	n.log.Warn("the cluster has taken this node for dead: joining again")
	n.net.SetCluster(dsm.ClusterID(h.mem.Word(hold.Cluster).Load())) // another one may be at the addresses of its members
	n.locksLost = true
	h.mem.Word(hold.Rejoining).Store(1)
	n.cats.last().Close()
	n.self.Inc = uint64(time.Now().UnixNano())
	h.mem.Word(hold.Inc).Store(n.self.Inc)
	if err := h.mem.Catalog().Rewrite(nil); err != nil {
		return err
	}
	next, err := n.newCatalog(n.self, n, nil, h.mem)
	if err != nil {
		return err
	}
	n.cats.show(next)
	err = errs.E(errs.Busy, "join", "the cluster had no other members")
	for _, addr := range strings.Fields(h.mem.Text(hold.Members)) {
		try, cancel := context.WithTimeout(ctx, joinLimit/4)
		err = next.Join(try, addr)
		cancel()
		if k := errs.KindOf(err); err == nil || k != errs.Unavailable && k != errs.Timeout {
			break
		}
	}
	if err == nil {
		err = next.Back(ctx, n.data.Served())
	}
	return err
}
