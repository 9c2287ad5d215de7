package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/coherence"
	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/locks"
	"github.com/dsmfs/dsmfs/membership"
)

var (
	_ catalog.Observer    = (*node)(nil)
	_ catalog.Caller      = (*transport.Transport)(nil)
	_ coherence.Sender    = (*transport.Transport)(nil)
	_ coherence.View      = (*catalogs)(nil)
	_ locks.Cluster       = (*catalogs)(nil)
	_ coherence.PageCache = (*fs.FS)(nil)
	_ membership.Net      = (*transport.Gossip)(nil)
	_ fs.Names            = (*catalogs)(nil)
	_ fs.Areas            = areas{}
	_ control.Info        = info{}
)

// AreaChanged implements catalog.Observer, as the next three methods do.
func (n *node) AreaChanged(before, after dsm.Inode) {
	<-n.built // a catalog that is resumed may be early
	n.data.AreaChanged(before, after)
}

// AreaRemoved implements catalog.Observer.
func (n *node) AreaRemoved(ino dsm.Ino) {
	<-n.built
	n.data.AreaRemoved(ino)
	n.leftovers.add()
}

// ViewChanged implements catalog.Observer.
func (n *node) ViewChanged(v *dsm.View) {
	<-n.built
	resumed := n.isResumed() // those that a journal brings back are old
	n.connect(v, resumed)
	if resumed {
		n.data.ViewChanged(v)
	}
	n.groups.ViewChanged(v)
}

// LocksChanged implements catalog.Observer.
func (n *node) LocksChanged(events []locks.Event) {
	<-n.built
	n.locks.LocksChanged(events)
}

// yieldLocks is catalog.Config.Yield.
func (n *node) yieldLocks(ino dsm.Ino, term uint64) (locks.Yield, bool) {
	return n.locks.Yield(ino, term)
}

// orphaned is catalog.Config.Orphaned.
func (n *node) orphaned(ino dsm.Ino) {
	if f := n.mounted.Load(); f != nil { // without one nobody makes files
		f.Orphaned(ino)
	}
}

// shrunk is catalog.Config.Shrunk.
func (n *node) shrunk(ctx context.Context, ino dsm.Ino) {
	select {
	case <-n.built:
		n.data.AwaitTruncated(ctx, dsm.AreaID(ino))
	case <-ctx.Done():
	}
}

// Reset implements catalog.Observer.
func (n *node) Reset() {
	select {
	case <-n.built:
	default:
		return // of a catalog that is resumed: resume does it
	}
	n.connect(n.cats.Current(), true)
	if n.isResumed() { // else resume does that, too
		n.data.Reset()
	}
	n.locks.LocksReset()
	n.groups.ViewChanged(n.cats.Current())
}

// told is what the transport, and the next daemon, know of the members. While the catalog tells of a view, Reset of another goroutine may have looked up the one
// before: that comes too late.
type told struct {
	mu struct {
		lockrank.Mutex
		view *dsm.View // the newest
	}
}

func (o *told) init() { o.mu.Init("dsmfs.told") }

// connect tells the transport who the members are and, if note is set, the next daemon.
func (n *node) connect(v *dsm.View, note bool) {
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	if was := n.told.mu.view; was != nil && was.Cluster == v.Cluster && was.Epoch > v.Epoch {
		v = was
	}
	n.told.mu.view = v
	if note {
		n.noteMembers(v)
	}
	peers := make(map[dsm.NodeID]string, len(v.Members))
	for _, m := range v.Members {
		peers[m.ID] = m.Addr
	}
	n.net.SetTrust(v)
	n.net.SetPeers(peers)
}

// areas is the data plane as fs needs it.
type areas struct{ n *node }

// Open implements fs.Areas.
func (a areas) Open(ctx context.Context, id dsm.AreaID, write bool) (fs.Area, error) {
	x, err := a.n.data.Open(ctx, id, write)
	if err != nil {
		return nil, err
	}
	return &area{Area: x}, nil
}

// Reopen implements fs.Areas.
func (a areas) Reopen(ctx context.Context, id dsm.AreaID, write bool) (fs.Area, error) {
	x, err := a.n.data.Reopen(ctx, id, write)
	if err != nil {
		return nil, err
	}
	return &area{Area: x}, nil
}

// Inspect implements fs.Areas.
func (a areas) Inspect(ctx context.Context, id dsm.AreaID) (fs.AreaReport, error) {
	r, err := a.n.data.Inspect(ctx, id)
	return fs.AreaReport{Version: r.Version, Subscribers: r.Subscribers}, err
}

// Homes implements fs.Areas.
func (a areas) Homes(id dsm.AreaID) ([]fs.AreaHome, error) {
	homes, err := a.n.data.Homes(id)
	list := make([]fs.AreaHome, len(homes))
	for i, h := range homes {
		list[i] = fs.AreaHome(h)
	}
	return list, err
}

// Owner implements fs.Areas.
func (a areas) Owner(id dsm.AreaID) dsm.NodeID { return a.n.data.Owner(id) }

// Reclaimed implements fs.Areas.
func (a areas) Reclaimed(ctx context.Context, id dsm.AreaID) error {
	return a.n.data.Reclaimed(ctx, id)
}

// Transfer implements fs.Areas.
func (a areas) Transfer(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error {
	return a.n.data.Transfer(ctx, id, to)
}

// CountPages implements fs.Areas.
func (a areas) CountPages(ctx context.Context, id dsm.AreaID) (int64, error) {
	return a.n.data.CountPages(ctx, id)
}

// KeepPages implements fs.Areas.
func (a areas) KeepPages() { a.n.data.KeepPages() }

// Stats implements fs.Areas: it has the figures of everything below fs.
func (a areas) Stats() []control.Stat {
	v := a.n.cats.Current()
	stats := []control.Stat{
		{Name: "cluster", Value: v.Cluster.String()},
		{Name: "epoch", Value: strconv.FormatUint(uint64(v.Epoch), 10)},
		{Name: "leader", Value: a.n.cats.last().Leader().String()},
		{Name: "cut_off", Value: strconv.FormatBool(a.n.cats.CutOff())},
	}
	why := a.n.lostBecause()
	stats = append(stats, control.Stat{Name: "outlives_daemon", Value: strconv.FormatBool(why == "")})
	if why != "" {
		stats = append(stats, control.Stat{Name: "lost_with_daemon_because", Value: why})
	}
	if why := a.n.rejoins.why.Load(); why != nil {
		stats = append(stats, control.Stat{Name: "joins_again_when", Value: *why})
	}
	for _, s := range a.n.data.Stats() {
		stats = append(stats, control.Stat{Name: s.Name, Value: s.Value})
	}
	for _, s := range a.n.groups.Stats() {
		stats = append(stats, control.Stat{Name: s.Name, Value: s.Value})
	}
	t := a.n.net.Stats()
	var in, out, resets uint64
	var queued, connected int
	for _, p := range t.Peers {
		in, out, resets, queued = in+p.BytesIn, out+p.BytesOut, resets+p.Resets, queued+p.Queued
		if p.Connected {
			connected++
		}
	}
	for _, s := range []struct {
		name  string
		value any
	}{
		{"bytes_received", in}, {"bytes_sent", out}, {"bytes_queued", queued}, {"sessions", connected},
		{"session_resets", resets}, {"connections_rejected", t.Rejected}, {"frames_bad", t.Bad}, {"datagrams_foreign", t.Foreign},
	} {
		stats = append(stats, control.Stat{Name: s.name, Value: fmt.Sprint(s.value)})
	}
	return stats
}

// area is an open area as fs needs it. fs has one worker for each area, which is done with a notice
// before it takes the next, so one field for it is enough.
type area struct {
	*coherence.Area
	taken coherence.Notice
}

// NextNotice implements fs.Area.
func (a *area) NextNotice() (fs.Notice, bool) {
	n, ok := a.Area.NextNotice()
	if ok {
		a.taken = n
	}
	return fs.Notice{Off: n.Off, Len: n.Len, Data: n.Data}, ok
}

// NoticeDone implements fs.Area.
func (a *area) NoticeDone(fs.Notice) { a.Area.NoticeDone(a.taken) }

// Versions implements fs.Area.
func (a *area) Versions() []fs.VersionInfo {
	all := a.Area.Versions()
	list := make([]fs.VersionInfo, len(all))
	for i, v := range all {
		list[i] = fs.VersionInfo(v)
	}
	return list
}

// PinVersion implements fs.Area.
func (a *area) PinVersion(v dsm.Version) (fs.VersionInfo, error) {
	pinned, err := a.Area.PinVersion(v)
	return fs.VersionInfo(pinned), err
}

// PinToRead implements fs.Area.
func (a *area) PinToRead(ctx context.Context, v dsm.Version) (fs.VersionInfo, error) {
	pinned, err := a.Area.PinToRead(ctx, v)
	return fs.VersionInfo(pinned), err
}

// Attach implements fs.Area.
func (a *area) Attach(ctx context.Context, program int, write bool) (fs.Attachment, *os.File, error) {
	t, f, err := a.Area.Attach(ctx, program, write)
	if err != nil {
		return nil, nil, err
	}
	return attachment{t}, f, nil
}

// Reattach implements fs.Area.
func (a *area) Reattach(program int, write bool, memory uint64) (fs.Attachment, *os.File, error) {
	t, f, err := a.Area.Reattach(program, write, memory)
	if err != nil {
		return nil, nil, err
	}
	return attachment{t}, f, nil
}

// attachment is an attachment as fs needs it.
type attachment struct{ *coherence.Attachment }

// Track implements fs.Attachment.
func (t attachment) Track(source fs.Source, off, n int64) (stop func()) {
	if source == nil {
		return t.Attachment.Track(nil, off, n)
	}
	return t.Attachment.Track(source, off, n)
}

// CompareTime implements fs.Area.
func (a *area) CompareTime() time.Duration { return a.Area.TrackingStats().CompareTime }

// Figures implements fs.Area.
func (a *area) Figures() []control.Stat {
	t, d := a.Area.TrackingStats(), a.DemandStats()
	drafts, bytes := a.DraftStats()
	stats := []control.Stat{
		{Name: "pages_here", Value: strconv.Itoa(d.Here)},
		{Name: "pages_asked", Value: strconv.Itoa(d.Asked)},
		{Name: "drafts", Value: strconv.Itoa(drafts)},
		{Name: "draft_bytes", Value: strconv.FormatInt(bytes, 10)},
		{Name: "mappings", Value: strconv.Itoa(t.Mappings)},
		{Name: "mappings_compared", Value: strconv.Itoa(t.Comparing)},
		{Name: "scans", Value: strconv.FormatUint(t.Scans, 10)},
		{Name: "pages_found", Value: strconv.FormatUint(t.Found, 10)},
		{Name: "pages_compared", Value: strconv.FormatUint(t.Compared, 10)},
		{Name: "conflicts", Value: strconv.Itoa(a.ConflictCount())},
		{Name: "home_moves", Value: strconv.FormatUint(uint64(a.HomeMoves()), 10)},
	}
	if d, ok := a.Staleness(); ok {
		stats = append(stats, control.Stat{Name: "staleness_ms", Value: strconv.FormatInt(d.Milliseconds(), 10)})
	}
	for _, s := range slices.Concat(a.NotFiniteStats(), a.Ages()) {
		stats = append(stats, control.Stat(s))
	}
	return stats
}

// info is what /.dsm shows of other parts.
type info struct{ n *node }

// Version implements control.Info.
func (info) Version() string { return programVersion() }

// Self implements control.Info.
func (i info) Self() dsm.NodeID { return i.n.self.ID }

// LogLevel implements control.Info.
func (i info) LogLevel() slog.Level { return i.n.cfg.level.Level() }

// SetLogLevel implements control.Info.
func (i info) SetLogLevel(l slog.Level) { i.n.cfg.level.Set(l) }

// Members implements control.Info.
func (i info) Members() []control.Member {
	v, peers := i.n.cats.Current(), i.n.gossip.Peers()
	members := make([]control.Member, len(v.Members))
	for j, m := range v.Members {
		members[j] = control.Member{Member: m, State: i.n.stateIn(peers, m.ID)}
		if m.Gone {
			members[j].State = "gone"
		}
	}
	return members
}

// tracking describes how stores of attached programs are found.
func (n *node) tracking() string {
	mode, _, err := n.cfg.trackingMode()
	if err != nil {
		return err.Error() // it was checked at the start, so this does not happen
	}
	return mode.String()
}

// Config implements control.Info.
func (i info) Config() []control.Stat {
	c := i.n.cfg
	return []control.Stat{
		{Name: "id", Value: i.n.self.ID.String()},
		{Name: "name", Value: i.n.self.Name},
		{Name: "addr", Value: i.n.self.Addr},
		{Name: "pid", Value: strconv.Itoa(os.Getpid())},
		{Name: "mount", Value: c.point},
		{Name: "state", Value: c.state},
		{Name: "log_file", Value: c.logFile},
		{Name: "listen", Value: c.listen},
		{Name: "memory", Value: strconv.FormatInt(int64(c.memory), 10)},
		{Name: "fault_timeout", Value: c.timeout.String()},
		{Name: "scrub", Value: c.scrub.String()},
		{Name: "tracking", Value: i.n.tracking()},
		{Name: "passthrough", Value: c.passthrough},
		{Name: "hold", Value: string(c.hold)},
		{Name: "insecure", Value: strconv.FormatBool(c.insecure)},
	}
}
