package hold_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a program says to the daemon at the attach socket: docs/attach.md.
const (
	opAttach  = 1
	opTrack   = 2
	opPublish = 4
	opAcquire = 5
	opSync    = 6
	opDetach  = 9
	opPrepare = 12
	opName    = 13
	opResume  = 23

	forReading = 1
	forWriting = 3

	wantsUffd      = 1
	outlivesDaemon = 32

	headerSize = 64
)

// attachClient is a connection to the daemon, or to the one that follows it.
type attachClient struct {
	root   string // of the mount
	socket string
	conn   *net.UnixConn
	tag    uint64
	files  []*attachedFile
	lost   int // connections
}

// attachedFile is a file that a program has attached.
type attachedFile struct {
	c          *attachClient
	path       string
	access     uint64
	attachment uint64
	area       uint64
	memory     uint64 // inode number of the memfd
	flags      uint64
	mem        []byte
	uffd       int
}

// message is a request, or a reply.
type message struct {
	op         uint16
	attachment uint64
	arg        [4]uint64
	payload    string
	fd         int // 0: none
}

// errLost says that the daemon has gone.
var errLost = errors.New("the connection is lost")

// newAttachClient returns a client of the mount that a directory is in, and the path of the directory there.
func newAttachClient(dir string) (c *attachClient, path string, err error) {
	for root := dir; root != "/"; root = filepath.Dir(root) {
		text, err := os.ReadFile(filepath.Join(root, ".dsm/attach"))
		if err != nil {
			continue
		}
		c := &attachClient{root: root, socket: strings.TrimSpace(string(text))}
		return c, strings.TrimPrefix(dir, root), c.connect()
	}
	return nil, "", fmt.Errorf("%s is in no mount to which programs attach", dir)
}

func (c *attachClient) connect() (err error) {
	c.conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.socket, Net: "unixpacket"})
	return err
}

// exchange sends a request and waits for its reply.
func (c *attachClient) exchange(q message) (r message, err error) {
	c.tag++
	le := binary.LittleEndian
	b := make([]byte, headerSize, headerSize+len(q.payload))
	le.PutUint32(b, 0x414d5344)
	le.PutUint16(b[4:], 1)
	le.PutUint16(b[6:], q.op)
	le.PutUint64(b[8:], c.tag)
	le.PutUint64(b[16:], q.attachment)
	for i, v := range q.arg {
		le.PutUint64(b[24+8*i:], v)
	}
	le.PutUint32(b[56:], uint32(len(q.payload)))
	b = append(b, q.payload...)
	var rights []byte
	if q.fd != 0 {
		rights = unix.UnixRights(q.fd)
	}
	if _, _, err := c.conn.WriteMsgUnix(b, rights, nil); err != nil {
		return r, errLost
	}
	b, oob := make([]byte, headerSize+4096), make([]byte, unix.CmsgSpace(4))
	n, on, _, _, err := c.conn.ReadMsgUnix(b, oob)
	if err != nil || n < headerSize {
		return r, errLost
	}
	r.payload = string(b[headerSize:n])
	if tag := le.Uint64(b[8:]); tag != c.tag {
		return r, fmt.Errorf("a reply to %d, want %d", tag, c.tag)
	}
	if errno := unix.Errno(le.Uint32(b[60:])); errno != 0 {
		return r, fmt.Errorf("request %d: %w: %s", q.op, errno, r.payload)
	}
	r.attachment = le.Uint64(b[16:])
	for i := range r.arg {
		r.arg[i] = le.Uint64(b[24+8*i:])
	}
	if messages, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			r.fd = fds[0]
		}
	}
	return r, nil
}

// do is exchange with the next daemon, too: all that was attached is attached again there. A request that had no reply is repeated.
func (c *attachClient) do(q func() message) (r message, err error) {
	for {
		if r, err = c.exchange(q()); !errors.Is(err, errLost) {
			return r, err
		}
		if err := c.resume(); err != nil {
			return r, err
		}
	}
}

func (c *attachClient) resume() error {
	for again := true; again; {
		c.lost++
		_ = c.conn.Close()
		if err := c.connect(); err != nil {
			return fmt.Errorf("connect again: %w", err)
		}
		again = false
		for _, f := range c.files {
			err := f.resume()
			if again = errors.Is(err, errLost); again {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.path, err)
			}
		}
	}
	return nil
}

// attach attaches a file and maps it.
func (c *attachClient) attach(path string, access uint64) (*attachedFile, error) {
	return c.attachBy(message{op: opAttach, arg: [4]uint64{access}, payload: path}, path, access)
}

// prepare makes a file of some size that has no name yet, and maps it.
func (c *attachClient) prepare(path string, size int) (*attachedFile, error) {
	return c.attachBy(message{op: opPrepare, arg: [4]uint64{uint64(size), 0o644}, payload: path + "\n"}, path, forWriting)
}

func (c *attachClient) attachBy(q message, path string, access uint64) (*attachedFile, error) {
	r, err := c.do(func() message { return q })
	if err != nil {
		return nil, err
	}
	f := &attachedFile{c: c, path: path, access: access, uffd: -1}
	f.is(r)
	if f.flags&outlivesDaemon == 0 {
		return nil, fmt.Errorf("%s: flags %d: the attachment does not outlive the daemon", path, f.flags)
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return nil, err
	}
	f.memory = st.Ino
	prot := unix.PROT_READ
	if access == forWriting {
		prot |= unix.PROT_WRITE
	}
	if f.mem, err = unix.Mmap(r.fd, 0, int(r.arg[0]+page-1)&^(page-1), prot, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if err := unix.Close(r.fd); err != nil {
		return nil, err
	}
	c.files = append(c.files, f)
	for err = f.track(); errors.Is(err, errLost); {
		err = c.resume()
	}
	return f, err
}

func (f *attachedFile) is(r message) {
	f.attachment, f.area, f.flags = r.attachment, r.arg[1], r.arg[3]
}

// resume attaches the file at another daemon.
func (f *attachedFile) resume() error {
	for {
		r, err := f.c.exchange(message{op: opResume, arg: [4]uint64{f.access, f.area, f.memory}, payload: f.path})
		if errors.Is(err, unix.ETIMEDOUT) {
			continue
		}
		if err != nil {
			return err
		}
		f.is(r)
		if f.flags&outlivesDaemon == 0 {
			return fmt.Errorf("flags %d: the attachment does not outlive the daemon", f.flags)
		}
		return f.track()
	}
}

// track has the daemon find what is stored.
func (f *attachedFile) track() error {
	if f.access != forWriting {
		return nil
	}
	if f.uffd >= 0 {
		_ = unix.Close(f.uffd)
		f.uffd = -1
	}
	q := message{op: opTrack, attachment: f.attachment, arg: [4]uint64{uint64(uintptr(unsafe.Pointer(&f.mem[0]))), uint64(len(f.mem)), 0}}
	if f.flags&wantsUffd != 0 {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
		if errno != 0 {
			return fmt.Errorf("userfaultfd: %w", errno)
		}
		f.uffd, q.fd = int(fd), int(fd)
	}
	_, err := f.c.exchange(q)
	return err
}

// name gives a file of prepare its name.
func (f *attachedFile) name() error {
	_, err := f.c.do(func() message { return message{op: opName, attachment: f.attachment, payload: f.path} })
	return err
}

// call does PUBLISH, ACQUIRE or SYNC. While the home of something is away that may take longer than a request may.
func (f *attachedFile) call(op uint16) (err error) {
	_, err = f.c.do(func() message { return message{op: op, attachment: f.attachment} })
	return err
}

// attached stores to files that it has attached, a small and a large one, and publishes. Elements go back to values that they had, too.
type attached struct {
	rnd   *rand.Rand
	c     *attachClient
	dir   string
	paths []string
	files []*attachedFile
	want  [][]byte
	reads *attachedFile // the first file, attached for reading by a connection of its own
}

func (w *attached) begin(dir string, rnd *rand.Rand) (err error) {
	var root string
	if w.c, root, err = newAttachClient(dir); err != nil {
		return err
	}
	w.rnd, w.dir = rnd, dir
	for i, size := range []int{5*page + 80, 3 << 20} {
		name := fmt.Sprint("a", i)
		w.paths = append(w.paths, filepath.Join(dir, name))
		file, err := os.OpenFile(w.paths[i], os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			err = errors.Join(file.Truncate(int64(size)), file.Close())
		}
		if err != nil {
			return err
		}
		f, err := w.c.attach(filepath.Join(root, name), forWriting)
		if err != nil {
			return err
		}
		w.files, w.want = append(w.files, f), append(w.want, make([]byte, size))
	}
	other, _, err := newAttachClient(dir)
	if err != nil {
		return err
	}
	w.reads, err = other.attach(filepath.Join(root, "a0"), forReading)
	return err
}

func (w *attached) step() error {
	k := w.rnd.IntN(len(w.files))
	f, want := w.files[k], w.want[k]
	for range 20 {
		at := 8 * w.rnd.IntN(len(want)/8)
		if got, want := binary.LittleEndian.Uint64(f.mem[at:]), binary.LittleEndian.Uint64(want[at:]); got != want {
			return fmt.Errorf("file %d: the element at %d is %#x, want %#x", k, at, got, want)
		}
		v := uint64(w.rnd.IntN(3))
		binary.LittleEndian.PutUint64(f.mem[at:], v)
		binary.LittleEndian.PutUint64(want[at:], v)
	}
	if w.rnd.IntN(30) > 0 {
		return nil
	}
	ops := []uint16{opPublish, opSync, opAcquire}
	op := ops[w.rnd.IntN(len(ops))]
	if err := f.call(op); err != nil {
		return err
	}
	if op == opAcquire {
		return nil
	}
	return w.look(k)
}

// look compares what the daemon has with what was stored.
func (w *attached) look(k int) error {
	got, err := stored(w.paths[k])
	if err != nil {
		return err
	}
	return same("what is stored", got, w.want[k])
}

func (w *attached) check() error {
	for k, f := range w.files {
		if err := same("the memory", f.mem[:len(w.want[k])], w.want[k]); err != nil {
			return err
		}
		if err := f.call(opPublish); err != nil {
			return err
		}
		if err := w.look(k); err != nil {
			return err
		}
	}
	if err := w.reads.call(opAcquire); err != nil {
		return err
	}
	if err := same("the memory of who reads", w.reads.mem[:len(w.want[0])], w.want[0]); err != nil {
		return err
	}
	for _, f := range w.files {
		if err := f.call(opDetach); err != nil {
			return err
		}
	}
	if w.c.lost == 0 {
		return errors.New("no daemon was killed meanwhile")
	}
	return nil
}

// joins attaches a file that programs of all nodes have attached, or mapped through the mount. Each has elements of its own, and sees those of the others never go back.
type joins struct {
	rnd  *rand.Rand
	k    int
	next uint64
	f    *attachedFile
	want []byte
	seen []byte
	own  string
}

// joinedFile is in the directory of the programs.
const joinedFile = "joined"

func (w *joins) begin(dir string, rnd *rand.Rand) error {
	w.rnd, w.own = rnd, filepath.Join(dir, "own")
	if _, err := fmt.Sscanf(filepath.Base(dir), "joins%d", &w.k); err != nil {
		return err
	}
	c, root, err := newAttachClient(dir)
	if err != nil {
		return err
	}
	w.want, w.seen = make([]byte, sharesLast), make([]byte, sharesLast)
	w.f, err = c.attach(filepath.Join(filepath.Dir(root), joinedFile), forWriting)
	return err
}

func (w *joins) step() error {
	le := binary.LittleEndian
	for range 20 {
		at := 8 * (sharesFor*w.rnd.IntN(sharesLast/8/sharesFor) + w.k)
		if got, want := le.Uint64(w.f.mem[at:]), le.Uint64(w.want[at:]); got != want {
			return fmt.Errorf("the element at %d is %#x, want %#x", at, got, want)
		}
		w.next++
		le.PutUint64(w.f.mem[at:], w.next)
		le.PutUint64(w.want[at:], w.next)
		at = 8 * w.rnd.IntN(sharesLast/8)
		got, before := le.Uint64(w.f.mem[at:]), le.Uint64(w.seen[at:])
		if got < before {
			return fmt.Errorf("the element at %d, of program %d, is %d, and was %d", at, at/8%sharesFor, got, before)
		}
		le.PutUint64(w.seen[at:], got)
	}
	if w.rnd.IntN(30) > 0 {
		return nil
	}
	return w.f.call(opSync)
}

// check leaves what the program has stored, for looksAtJoined.
func (w *joins) check() error {
	if err := w.f.call(opSync); err != nil {
		return err
	}
	return os.WriteFile(w.own, w.want, 0o644)
}

// looksAtJoined compares what is in the file with what all programs of kind joins have stored.
type looksAtJoined struct{ looks }

func (looksAtJoined) begin(dir string, _ *rand.Rand) error {
	common := filepath.Dir(dir)
	want := make([]byte, sharesLast)
	for k := range sharesFor {
		text, err := os.ReadFile(filepath.Join(common, fmt.Sprint("joins", k), "own"))
		if err != nil {
			return err
		}
		for at := 8 * k; at+8 <= sharesLast; at += 8 * sharesFor {
			copy(want[at:], text[at:at+8])
		}
	}
	got, err := stored(filepath.Join(common, joinedFile))
	if err != nil {
		return err
	}
	return same("what is stored of "+joinedFile, got, want)
}

// addsAttached adds to a file that programs of all nodes have attached, each in memory of its own.
type addsAttached struct {
	rnd   *rand.Rand
	f     *attachedFile
	added []uint64
	own   string
}

func (w *addsAttached) begin(dir string, rnd *rand.Rand) error {
	w.rnd, w.own, w.added = rnd, filepath.Join(dir, "own"), make([]uint64, sharesSum/8)
	c, root, err := newAttachClient(dir)
	if err != nil {
		return err
	}
	w.f, err = c.attach(filepath.Join(filepath.Dir(root), sumFile), forWriting)
	return err
}

func (w *addsAttached) step() error {
	le := binary.LittleEndian
	for range 20 {
		i := w.rnd.IntN(len(w.added))
		at := w.f.mem[8*i:]
		if got := le.Uint64(at); got < w.added[i] {
			return fmt.Errorf("element %d is %d, and the program alone has added %d", i, got, w.added[i])
		}
		le.PutUint64(at, le.Uint64(at)+1)
		w.added[i]++
	}
	if w.rnd.IntN(30) > 0 {
		return nil
	}
	ops := []uint16{opPublish, opSync, opSync, opAcquire}
	return w.f.call(ops[w.rnd.IntN(len(ops))])
}

// check leaves what the program has added, for looksAtAdded.
func (w *addsAttached) check() error {
	if err := w.f.call(opSync); err != nil {
		return err
	}
	var text []byte
	for _, n := range w.added {
		text = binary.LittleEndian.AppendUint64(text, n)
	}
	return os.WriteFile(w.own, text, 0o644)
}

// looksAtAdded compares what is in the file with what all programs of kind adds have added.
type looksAtAdded struct{ looks }

func (looksAtAdded) begin(dir string, _ *rand.Rand) error {
	common := filepath.Dir(dir)
	sums := make([]uint64, sharesSum/8)
	owns, err := filepath.Glob(filepath.Join(common, "adds*", "own"))
	if err != nil {
		return err
	}
	for _, own := range owns {
		text, err := os.ReadFile(own)
		if err != nil {
			return err
		}
		for i := range sums {
			sums[i] += binary.LittleEndian.Uint64(text[8*i:])
		}
	}
	var want []byte
	for _, n := range sums {
		want = binary.LittleEndian.AppendUint64(want, n)
	}
	f, err := os.OpenFile(filepath.Join(common, sumFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	got, err := stored(filepath.Join(common, sumFile))
	if err != nil {
		return err
	}
	return same("what is stored of "+sumFile, got, want)
}
