package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/trust"
)

// recoverLimit is how long the daemon may take to make a cluster of its own; most of it is the wait for a leader that may still be there.
const recoverLimit = 30 * time.Second

// clusterVerb is what concerns the cluster as a whole.
func clusterVerb(p *program, args []string) error {
	const usage = "recover MNT"
	f := p.flags("cluster")
	force := f.Bool("force", false, "do it: without this the nodes that would be given up are printed")
	limit := f.Duration("timeout", 2*recoverLimit, "how long to wait for the daemon of the mount")
	if err := parse(f, args, 2, 2, usage); err != nil {
		return err
	}
	if f.Arg(0) != "recover" {
		return fail(exitUsage, "cluster: unknown word %q: usage: dsmfs cluster %s; see dsmfs help cluster", f.Arg(0), usage)
	}
	m, _, err := findPath(f.Arg(1))
	if err != nil {
		return err
	}
	if !isSupervised() {
		return p.supervise(m.Point, *limit, "cluster", fmt.Sprintf("--force=%v", *force), "--", "recover", m.Point)
	}
	return touched(m.Point, p.recoverCluster(m.Point, *force))
}

// recoverCluster makes the node of a mount a cluster of its own, or says what that would mean.
func (p *program) recoverCluster(point string, force bool) error {
	rows, err := lookMembers(point)
	if err != nil {
		return err
	}
	var others []string
	for _, r := range rows {
		if !r.Self {
			others = append(others, fmt.Sprintf("  %s at %s (%s)", r.Name, r.Addr, r.State))
		}
	}
	if !force {
		return fail(exitUsage, "cluster: recover makes the node of %s a cluster of its own. What these nodes alone have is lost, and if one of them is alive it is refused until it is mounted anew:\n%s\n"+
			"If they are dead, or ended for good, add --force", point, strings.Join(others, "\n"))
	}
	err = writeControl(point, "cluster", "recover")
	switch {
	case errors.Is(err, syscall.EBUSY):
		return fail(exitOther, "cluster: recover: the cluster of %s works, or has evicted this node, which joins again when it reaches a member: nothing is to be recovered (dsmfs status %s)", point, point)
	case errors.Is(err, os.ErrPermission):
		return fail(exitOther, "cluster: recover: only the user who has mounted %s may do that", point)
	case err != nil:
		return fmt.Errorf("cluster: recover: %w (the log of the daemon says more; the same order may be given again, and goes on where this one ended)", err)
	}
	now, err := readFlat(point, "cluster")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "cluster %s has this node alone now. Others join it anew: dsmfs umount, then dsmfs mount --join%s\n", now["id"], withToken(now))
	return err
}

func withToken(cluster map[string]string) string {
	if cluster["encrypted"] != "1" {
		return ""
	}
	return " and --token: the token is a new one (dsmfs token MNT)"
}

// Cluster implements control.Info.
func (i info) Cluster() []control.Stat {
	v := i.n.cats.Current()
	voters, encrypted := 0, 0
	for _, m := range v.Members {
		if m.Voter && !m.Gone {
			voters++
		}
	}
	if v.Trust != nil {
		encrypted = 1
	}
	ends := i.n.cats.last().EndWithDaemon(i.n.data.Served())
	uncovered, all := i.n.cats.last().Uncovered()
	if h := i.n.cfg.held; h.isFollowed() && h.mem.Word(hold.Others).Load() == 0 { // the next daemon has all
		uncovered, all, ends = 0, 0, 0
	}
	return []control.Stat{
		control.Figure("id", v.Cluster), control.Figure("epoch", v.Epoch), control.Figure("members", len(v.Members)), control.Figure("voters", voters),
		control.Figure("leader", i.n.cats.last().Leader()), control.Figure("lease", v.Lease), control.Figure("encrypted", encrypted), control.Figure("uncovered", uncovered), control.Figure("uncovered_anywhere", all),
		control.Figure("ends_with_daemon", ends),
	}
}

// RecoverCluster implements control.Info.
func (i info) RecoverCluster(ctx context.Context) error {
	order := recovery{caller: ctx, done: make(chan error, 1)}
	select {
	case i.n.rejoins.recoveries <- order:
	case <-ctx.Done():
		return errs.E(errs.Timeout, "recover", "the node is busy joining its cluster, or ending: %w", context.Cause(ctx))
	}
	select {
	case err := <-order.done:
		return err
	case <-ctx.Done():
		return errs.E(errs.Timeout, "recover", "%w", context.Cause(ctx))
	}
}

// recovery is the order to make this node a cluster of its own.
type recovery struct {
	caller context.Context // ends when nobody waits for it any more
	done   chan error      // capacity 1
}

// recoverAlone makes this node a cluster of its own, if the one that it is in has no majority any more. Until that is known the caller may give up, and
// nothing is done. After that it is done in any case; if it fails the node has no cluster, and the next order goes on.
func (n *node) recoverAlone(ctx, caller context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	old := n.cats.last()
	if !n.rejoins.left {
		if err := noMajority(ctx, old); err != nil {
			return err
		}
		if err := context.Cause(caller); err != nil {
			n.log.Warn("not made a cluster of its own: whoever gave the order has given up")
			return errs.E(errs.Timeout, "recover", "whoever gave the order does not wait any more: %w", err)
		}
	}
	n.log.Warn("told to give up all other nodes, and to be a cluster of its own", "former", old.Current().Cluster)
	n.rejoins.left = true
	n.cats.leave()
	old.Close()
	if err := n.found(ctx, old); err != nil {
		n.log.Error("this node has left its cluster, and has none of its own yet: give the order again", "err", err)
		return err
	}
	n.rejoins.left = false
	return nil
}

// found makes this node a cluster of its own, with the state of a catalog that has been closed.
func (n *node) found(ctx context.Context, old *catalog.Catalog) error {
	var keys *dsm.Trust
	if old.Current().Trust != nil {
		var err error
		if keys, err = trust.New(time.Now()); err != nil {
			return err
		}
	}
	g := &gate{n: n}
	next, err := n.nextCatalog(g)
	if err != nil {
		return err
	}
	if err := next.Recover(ctx, old, keys); err != nil {
		next.Close()
		return err
	}
	n.take(ctx, g, next)
	n.log.Warn("a cluster of its own", "cluster", next.Current().Cluster)
	return nil
}

// noMajority is Catalog.NoMajority, for as long as an election may take. Of a node that nobody has answered for a whole lease it is for a moment only.
func noMajority(ctx context.Context, c *catalog.Catalog) error {
	limit := recoverLimit / 6
	if c.Fenced() {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.NoMajority(ctx)
}
