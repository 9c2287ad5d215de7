package wire

import "github.com/dsmfs/dsmfs/internal/dsm"

// The data plane between the replica of an area on one node and the home of
// its extents on another (or the same) node:
//
//	replica                                   home
//	   | Subscribe (extents, versions) ------->|  what does the replica lack?
//	   |<------------------------ Subscribed   |  which pages it lacks
//	   |<----------------------------- Push    |  those pages, newest bytes, once
//	   | PushAck ----------------------------->|  room for the next Push of the extent
//	   | Fetch (pages) ----------------------->|  a program waits for these
//	   |<----------------------------- Push    |
//	   | Publish (delta, seq) ---------------->|  merge, version, push to the others
//	   |<----------------------- PublishAck    |
//	   | Acquire ----------------------------->|  push all that the replica lacks
//	   |<------------------- Push ... Acquired |
//	   | Survey (extents) -------------------->|  where is data?
//	   |<-------------------------- Surveyed   |
//	   | Part (round, delta, seq) ------------>|  keep it apart until the round ends
//	   |<----------------------------- Staged  |
//	   | Contributed (round) ----------------->|  there are no more parts of mine
//	   |<---------------------------- Counted  |
//	   | Finish (round, nodes) --------------->|  when all of them have contributed: merge, then as Acquire
//	   |<------- PublishAck ... Push, Acquired |
//	   | Release (pages) --------------------->|  no more of these: see Subscribe.Partial
//	   | Unsubscribe ------------------------->|
//	   | Take (to) --------------------------->|  make that node the owner of the versioned area
//	   |<----------------------------- Taken   |  when the view says so, or why not
//
// and between the old and the new home of a slot:
//
//	old home                                  new home
//	   | HandoverExtent ---------------------->|
//	   |<------------------------ HandoverAck  |  room for the next extent
//	   | HandoverDone ------------------------>|  then SlotsReady in the catalog
//
// and between the home of a slot and its backups:
//
//	home                                      backup
//	   | Refill (slots) ---------------------->|  drop what is left of them
//	   |<---------------------------- Refilled |
//	   | Replicate (a merged publish) -------->|  merge it as well
//	   | ReplicatePages (state, or a part) --->|
//	   | ReplicateVersion -------------------->|  the pages before it are a whole version
//	   |<-------------------------- Replicated |  then what the home says after the change may leave
//	   | Check (checksum of an extent) ------->|  from time to time
//	   |<----------------------------- Checked |  the same, or another: then all of the extent follows
//
// Every message names the area's generation and the sender's epoch.

// Stamp says for which state of the catalog a message was made.
type Stamp struct {
	Area  dsm.AreaID
	Gen   dsm.Generation // the receiver refuses an older one than its own
	Rev   dsm.Generation // the receiver first applies the catalog up to here
	Epoch dsm.Epoch      // likewise; it also refuses an epoch from before the slot moved
	// Newest is the newest version of the area that the sender has heard of: the receiver draws later ones.
	Newest dsm.Version
}

// ExtentVersion says that the sender knows all changes to the extent up to Version; with a partial
// subscription, all changes to the pages in Has. With Sums it also has what may be the bytes of now of
// other pages: those in Has. The daemon of the home, or of the sender, is another one since, so their
// versions cannot be compared. A page whose sum is that of the home's bytes is up to date.
type ExtentVersion struct {
	Extent  dsm.ExtentIndex
	Version dsm.Version
	Has     dsm.PageSet // of a partial subscription: the pages that the sender has; else those of Sums
	Sums    []byte      // nil, or SumSize bytes for each page in Has, in order, big endian: xxhash, with Subscribe.Seed
}

// SumSize is the size of a sum in ExtentVersion.
const SumSize = 8

// ExtentPages names pages of an extent.
type ExtentPages struct {
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet
}

// Subscribe asks for a stream of the updates of the extents that are newer than the versions, and,
// for each of the slots, of all its other extents, of which the subscriber has nothing: also those
// that the area gets later. The extents of a Group are sent before its slots, or with them. Without
// extents and slots it only changes OnRequest. A partial subscription covers only pages that the
// subscriber has: those in Has, and each page that it fetches, until it releases the page.
type Subscribe struct {
	Stamp
	Round     uint64
	OnRequest bool // push only after an Acquire or Fetch
	Partial   bool
	Group     uint64
	Seed      uint64 // of the sums; a sender draws another one each time that it subscribes
	Slots     []dsm.Slot
	Extents   []ExtentVersion
}

// Subscribed answers Subscribe with the pages that the subscriber lacks. Pages of the requested
// extents that are not listed are up to date (or still all zero).
type Subscribed struct {
	Stamp
	Round uint64
	Lacks []ExtentPages
	Full  []dsm.ExtentIndex // every requested extent
	Slots []dsm.Slot        // every requested slot
	More  bool              // another answer follows
}

// Unsubscribe ends the stream for the area.
type Unsubscribe struct{ Stamp }

// Fetch asks for pages at once.
type Fetch struct {
	Stamp
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet
}

// Release says that the sender, whose subscription is partial, does not have the pages any more.
type Release struct {
	Stamp
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet
}

// Push carries the newest bytes of pages. The payload has the pages in order, without those in
// Zero. With an Index it has the changes that a Publish made to them instead; the receiver has the
// bytes from just before.
type Push struct {
	Stamp
	Extent   dsm.ExtentIndex
	ID       uint64 // for PushAck
	Version  dsm.Version
	Contains dsm.Seq // the bytes contain the receiver's own publishes up to here
	Parts    dsm.Seq // likewise, its parts of rounds
	Complete bool    // with it the receiver knows all changes to the extent up to Version
	Ahead    bool    // the push was sent before the receiver, as a backup, has acked Version; it takes the push only if it has Version
	// Upto, unless it is 0, is a version: the receiver now has every publish that the sender has merged up to it. Whatever the sender merges later gets a later
	// version.
	Upto   dsm.Version
	Pages  dsm.PageSet
	Answer dsm.PageSet // the pages among Pages that were fetched
	Index  []byte
	Zero   dsm.PageSet

	// Of a versioned area: the push is number Part of a batch, which brings the receiver to Version when it has
	// all parts, up to the Last. Group is that of the Subscribe.
	Group  uint64
	Part   uint32
	Last   bool
	Writer dsm.NodeID // who published the version
	Size   int64      // bytes of the version
}

// PushAck says that the Push was merged, except for the pages in Declined: these must not reach a
// program outside its sync calls, and stay lacking.
type PushAck struct {
	Stamp
	Extent   dsm.ExtentIndex
	ID       uint64
	Declined dsm.PageSet
}

// Publish carries the changed elements of one extent: Index says which (see merge.Delta), the
// payload has the values (last, min, max) or differences (sum, mean).
type Publish struct {
	Stamp
	Extent dsm.ExtentIndex
	Seq    dsm.Seq
	Pages  dsm.PageSet
	Index  []byte
}

// PublishAck says that the publish is merged as Version. With Complete, the publisher knows all
// changes to the extent up to Version. With Stale, the publish was refused because its generation
// is old; the publisher diffs again. Rode has pages whose base at the publisher is the merged value
// already: a node's copy of the home's bytes and its base are one. Other nodes get it empty.
type PublishAck struct {
	Stamp
	Extent   dsm.ExtentIndex
	Seq      dsm.Seq
	Version  dsm.Version
	Complete bool
	Ahead    bool // as in Push
	Stale    bool
	Upto     dsm.Version // as in Push
	Data     int         // how many pages of the extent have bytes other than zero; not if Stale
	Rode     dsm.PageSet
}

// Acquire asks for everything that the sender lacks of those extents of the area whose home is the
// receiver.
type Acquire struct {
	Stamp
	Round uint64
}

// Acquired follows the pushes that Acquire asked for: the receiver has all of the sender's up to version Upto. That may be older than
// Newest: what is published while an Acquire is served need not be pushed before the answer.
type Acquired struct {
	Stamp
	Round uint64
	Upto  dsm.Version
}

// HandoverExtent carries the state of an extent to its new home. The payload has the pages of Pages
// in order.
type HandoverExtent struct {
	Stamp
	ID       uint64
	Slot     dsm.Slot
	Extent   dsm.ExtentIndex
	Version  dsm.Version
	Pages    dsm.PageSet
	Versions []dsm.Version // of the pages of Pages, in order
	Writers  []WriterSeq
	// Of a versioned area: its newest version, who published it, how many bytes it has, and whether the area was shrunk since.
	Whole  dsm.Version
	Writer dsm.NodeID
	Size   int64
	Shrunk bool
}

// WriterSeq says that the publishes of Node up to Seq are merged, and its parts of rounds up to Part.
type WriterSeq struct {
	Node dsm.NodeID
	Seq  dsm.Seq
	Part dsm.Seq
}

// HandoverDone says that all extents of the slots were sent. No area has a version later than Newest at the sender: the receiver draws
// later ones.
type HandoverDone struct {
	Epoch  dsm.Epoch
	Slots  []dsm.Slot
	Newest dsm.Version
}

// HandoverAck says that the HandoverExtent is installed. With Stale, it was made before the area
// was shrunk or its rules changed: the sender applies the catalog up to Rev and sends the extent
// again.
type HandoverAck struct {
	ID    uint64
	Stale bool
	Rev   dsm.Generation
}

// Inquire asks a home what it knows of an area. Inquired answers when the home has heard of version Until. Until then the
// home remembers only the last Inquire of each node.
type Inquire struct {
	Stamp
	Round uint64
	Until dsm.Version
}

// Inquired says who is subscribed to the area at the sender. Its Newest is the version of the area there: what the home
// merges from then on has a later one.
type Inquired struct {
	Stamp
	Round       uint64
	Subscribers []dsm.NodeID
}

// Survey asks a home where it has data in the extents [From, To) of an area; Surveyed answers.
type Survey struct {
	Stamp
	Round    uint64
	From, To dsm.ExtentIndex
}

// Surveyed says which pages of the extents homed at the sender have data, that is bytes other than zero: how many in all, and of
// the extents that were asked for which. An extent that is not named has none.
type Surveyed struct {
	Stamp
	Round uint64
	Pages int64
	Data  []ExtentPages
}

// Part is a Publish whose changes belong to a round. The home keeps it apart until the round ends, and answers Staged. When the round has
// ended, a PublishAck says what has become of it.
type Part struct {
	Stamp
	Round  dsm.RoundID
	Extent dsm.ExtentIndex
	Seq    dsm.Seq
	Pages  dsm.PageSet
	Index  []byte
}

// Staged says that the home keeps the part. The publisher keeps it as well: a home that moves or changes its rules needs it again.
type Staged struct {
	Stamp
	Extent dsm.ExtentIndex
	Seq    dsm.Seq
}

// Contributed follows the parts of a node, and goes to every home of the area; Counted answers, with the same Nonce. With None the node has
// no part in the round: what the home keeps of it goes back, with a PublishAck that says Stale.
type Contributed struct {
	Stamp
	Round dsm.RoundID
	Nonce uint64
	None  bool
	Parts int // how many parts it has sent this home
}

// Counted answers Contributed.
type Counted struct {
	Stamp
	Round dsm.RoundID
	Nonce uint64
}

// Missing asks a node for its Contributed: a home that gets new extents, or new rules, forgets those it had.
type Missing struct {
	Stamp
	Round dsm.RoundID
}

// Finish ends a round: when the home has heard Contributed from all Nodes that are still members, it merges their parts in one step. Parts of
// others go back as Stale. Then it goes on as with an Acquire.
type Finish struct {
	Stamp
	Round   dsm.RoundID
	Acquire uint64 // Acquire.Round
	Nodes   []dsm.NodeID
	Writers int // how many programs took part
}

// Take asks the owner of a versioned area to make the node To its owner.
type Take struct {
	Stamp
	Round uint64
	To    dsm.NodeID
}

// Taken answers Take. Kind is 0 if the area was given away by the view of the Stamp's epoch, else why it was not; Why says that in words.
type Taken struct {
	Stamp
	Round uint64
	Kind  uint8
	Why   string
}

// Replicate tells a backup of a publish that the home has merged: of node From, with the number Seq. The payload is that of the publish. The
// backup has the extent of version Base, and merges it by the same rules.
type Replicate struct {
	Stamp
	ID      uint64 // for Replicated
	Extent  dsm.ExtentIndex
	From    dsm.NodeID
	Seq     dsm.Seq
	Base    dsm.Version
	Version dsm.Version
	Pages   dsm.PageSet
	Index   []byte
}

// ReplicatePages tells a backup what has changed in an extent since version Base; all of it if Base is 0. The payload has the pages
// of Pages in order, without those in Zero.
type ReplicatePages struct {
	Stamp
	ID       uint64
	Extent   dsm.ExtentIndex
	Base     dsm.Version
	Version  dsm.Version
	Pages    dsm.PageSet
	Versions []dsm.Version // of the pages of Pages, in order
	Zero     dsm.PageSet
	Writers  []WriterSeq
	Begin    bool // of a versioned area: all of a version follows, and replaces what the backup has
}

// ReplicateVersion tells a backup that all pages of a versioned area before it make up the version Whole: what it has not got of a version
// whole does not count. With Whole 0 it says only what Newest says.
type ReplicateVersion struct {
	Stamp
	ID     uint64
	Whole  dsm.Version
	Writer dsm.NodeID
	Size   int64
	Begin  bool // as in ReplicatePages: the version has no pages
}

// Replicated says that the backup has what the message with the ID told. With Whole it does not: it needs the whole extent, or all of a
// versioned area.
type Replicated struct {
	Stamp
	ID    uint64
	Whole bool
}

// Check asks a backup whether its bytes of an extent, of a versioned area those of the version, have the same checksum as the home's. It goes behind all changes that the home has made there.
type Check struct {
	Stamp
	ID      uint64 // for Checked
	Extent  dsm.ExtentIndex
	Version dsm.Version
	Sum     uint64
}

// Checked answers a Check.
type Checked struct {
	Stamp
	ID     uint64
	Extent dsm.ExtentIndex
	Result CheckResult
	Sum    uint64 // the backup's, if it differs
	Home   uint64 // likewise, that of the Check
}

// CheckResult says how a Check has ended.
type CheckResult uint8

const (
	CheckSkipped CheckResult = iota // the backup has another version just now, or is none any more
	CheckSame
	CheckDiffers
)

// Refill tells a backup that it will be told all of the slots: it drops what it has of them.
type Refill struct {
	Epoch dsm.Epoch
	ID    uint64
	Slots []dsm.Slot
}

// Refilled answers Refill.
type Refilled struct{ ID uint64 }
