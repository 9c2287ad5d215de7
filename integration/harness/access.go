package harness

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The methods of this file end the test on any failure, so they are for the
// test's goroutine. Paths are relative to the mount.

// File is an open file of a client.
type File struct {
	c  *Client
	FD int
}

// Map is a shared mapping of a client.
type Map struct {
	c    *Client
	id   int
	Size int64
}

// Stat is what stat(2) said.
type Stat struct {
	Size   int64
	Mode   uint32
	Nlink  int
	Blocks int64
	Ino    uint64
	UID    int
	GID    int
	Mtime  int64
}

// Must is Do that ends the test if the command fails.
func (c *Client) Must(format string, args ...any) []string {
	c.n.c.t.Helper()
	words, err := c.Do(format, args...)
	if err != nil {
		c.n.c.t.Fatalf("%s: %.120s: %v", c.n.Name, fmt.Sprintf(format, args...), err)
	}
	return words
}

// Fails is Do that ends the test unless the command fails with the errno or signal.
func (c *Client) Fails(want Failure, format string, args ...any) {
	c.n.c.t.Helper()
	if _, err := c.Do(format, args...); err != want {
		c.n.c.t.Fatalf("%s: %.120s: %v, want %v", c.n.Name, fmt.Sprintf(format, args...), err, want)
	}
}

// Path returns the full path of a name on the client's mount.
func (c *Client) Path(name string) string { return filepath.Join(c.n.Mount, name) }

// Open opens a file; flags are words such as "rw,creat".
func (c *Client) Open(name, flags string) *File {
	c.n.c.t.Helper()
	return &File{c, int(number(c.Must("open %s %s", c.Path(name), flags)[0]))}
}

// Create makes a file of size bytes, which must not exist, and maps it.
func (c *Client) Create(name string, size int64) (*File, *Map) {
	c.n.c.t.Helper()
	f := c.Open(name, "rw,creat,excl")
	f.Truncate(size)
	return f, f.Map(size)
}

// Attach opens a file that exists and maps size bytes of it.
func (c *Client) Attach(name string, size int64) (*File, *Map) {
	c.n.c.t.Helper()
	f := c.Open(name, "rw")
	return f, f.Map(size)
}

// Stat looks at a name.
func (c *Client) Stat(name string) Stat {
	c.n.c.t.Helper()
	return ParseStat(c.Must("stat %s", c.Path(name)))
}

// SetXattr sets an extended attribute.
func (c *Client) SetXattr(name, key, value string) {
	c.n.c.t.Helper()
	c.Must("setxattr %s %s %s", c.Path(name), key, value)
}

// Xattr reads an extended attribute.
func (c *Client) Xattr(name, key string) string {
	c.n.c.t.Helper()
	return string(bytesOf(c.Must("getxattr %s %s", c.Path(name), key)[0]))
}

// Control reads a file below /.dsm.
func (c *Client) Control(name string) string {
	c.n.c.t.Helper()
	fd := c.Must("open %s r", c.Path(".dsm/"+name))[0]
	text := bytesOf(c.Must("pread %s 0 65536", fd)[0])
	c.Must("close %s", fd)
	return string(text)
}

// SetControl writes a file below /.dsm as echo does.
func (c *Client) SetControl(name, value string) error {
	c.n.c.t.Helper()
	words, err := c.Do("open %s w,trunc", c.Path(".dsm/"+name))
	if err != nil {
		return err
	}
	_, err = c.Do("pwrite %s 0 %x", words[0], value+"\n")
	c.Must("close %s", words[0])
	return err
}

// Map maps size bytes for reading and writing.
func (f *File) Map(size int64) *Map {
	f.c.n.c.t.Helper()
	return &Map{f.c, int(number(f.c.Must("mmap %d 0 %d rw", f.FD, size)[0])), size}
}

// MapForReading maps size bytes for reading.
func (f *File) MapForReading(size int64) *Map {
	f.c.n.c.t.Helper()
	return &Map{f.c, int(number(f.c.Must("mmap %d 0 %d r", f.FD, size)[0])), size}
}

// MapRead maps size bytes for reading.
func (f *File) MapRead(size int64) *Map {
	f.c.n.c.t.Helper()
	return &Map{f.c, int(number(f.c.Must("mmap %d 0 %d r", f.FD, size)[0])), size}
}

// Truncate sets the size.
func (f *File) Truncate(size int64) {
	f.c.n.c.t.Helper()
	f.c.Must("ftruncate %d %d", f.FD, size)
}

// Stat looks at the open file.
func (f *File) Stat() Stat {
	f.c.n.c.t.Helper()
	return ParseStat(f.c.Must("fstat %d", f.FD))
}

// Read is pread(2) until n bytes or the end.
func (f *File) Read(off, n int64) []byte {
	f.c.n.c.t.Helper()
	return bytesOf(f.c.Must("pread %d %d %d", f.FD, off, n)[0])
}

// Write is pwrite(2).
func (f *File) Write(off int64, p []byte) {
	f.c.n.c.t.Helper()
	if n := number(f.c.Must("pwrite %d %d %s", f.FD, off, digits(p))[0]); n != int64(len(p)) {
		f.c.n.c.t.Fatalf("%s: pwrite of %d bytes wrote %d", f.c.n.Name, len(p), n)
	}
}

// Append is write(2) of a file that was opened to append.
func (f *File) Append(p []byte) {
	f.c.n.c.t.Helper()
	if n := number(f.c.Must("write %d %s", f.FD, digits(p))[0]); n != int64(len(p)) {
		f.c.n.c.t.Fatalf("%s: write of %d bytes wrote %d", f.c.n.Name, len(p), n)
	}
}

// Sync is fsync(2).
func (f *File) Sync() {
	f.c.n.c.t.Helper()
	f.c.Must("fsync %d", f.FD)
}

// Close closes the file; its mappings stay.
func (f *File) Close() {
	f.c.n.c.t.Helper()
	f.c.Must("close %d", f.FD)
}

// Load reads memory.
func (m *Map) Load(off, n int64) []byte {
	m.c.n.c.t.Helper()
	return bytesOf(m.c.Must("load %d %d %d", m.id, off, n)[0])
}

// LoadFails reads memory that must not be there: SIGBUS.
func (m *Map) LoadFails(off int64) error {
	_, err := m.c.Do("load %d %d 1", m.id, off)
	return err
}

// Store changes memory.
func (m *Map) Store(off int64, p []byte) {
	m.c.n.c.t.Helper()
	m.c.Must("store %d %d %s", m.id, off, digits(p))
}

// Fill stores the pattern of the seed; Check finds the first byte that is not it, or -1.
func (m *Map) Fill(off, n int64, seed int) {
	m.c.n.c.t.Helper()
	m.c.Must("fill %d %d %d %d", m.id, off, n, seed)
}

// Check returns the first offset that does not have what Fill stored, or -1.
func (m *Map) Check(off, n int64, seed int) int64 {
	m.c.n.c.t.Helper()
	return number(m.c.Must("check %d %d %d %d", m.id, off, n, seed)[0])
}

// Sync is msync(MS_SYNC) of the whole mapping.
func (m *Map) Sync() {
	m.c.n.c.t.Helper()
	m.c.Must("msync %d", m.id)
}

// TrySync is Sync, and returns the error.
func (m *Map) TrySync() error {
	_, err := m.c.Do("msync %d", m.id)
	return err
}

// Await spins until p is in the memory and reports how long that took; it ends
// the test at the limit.
func (m *Map) Await(off int64, p []byte, limit time.Duration) time.Duration {
	m.c.n.c.t.Helper()
	words, err := m.c.do(limit+callLimit, fmt.Sprintf("spin %d %d %s %d", m.id, off, digits(p), limit.Milliseconds()))
	if err != nil {
		have, _ := m.c.Do("load %d %d %d", m.id, off, len(p))
		m.c.n.c.t.Fatalf("%s: %x at %d not seen within %v (%v): there is %v", m.c.n.Name, p, off, limit, err, have)
	}
	return time.Duration(number(words[0]))
}

// Add starts a thread that atomically adds v to each of count elements, rounds times.
func (m *Map) Add(dtype string, off int64, count int, v float64, rounds int) {
	m.c.n.c.t.Helper()
	m.c.Must("add %s %d %d %d %g %d", dtype, m.id, off, count, v, rounds)
}

// Join calls msync until all threads of Add have ended and returns how often. It
// may be called from any goroutine.
func (m *Map) Join(limit time.Duration) (syncs int64, err error) {
	words, err := m.c.do(limit, fmt.Sprintf("join %d", m.id))
	if err != nil {
		return 0, fmt.Errorf("%s: join: %w", m.c.n.Name, err)
	}
	return number(words[0]), nil
}

// Range returns the least and the greatest of count elements.
func (m *Map) Range(dtype string, off int64, count int) (lo, hi int64) {
	m.c.n.c.t.Helper()
	words := m.c.Must("range %s %d %d %d", dtype, m.id, off, count)
	return number(words[0]), number(words[1])
}

// Pin pins memory for good, until the client ends: EFAULT, EINVAL or
// EOPNOTSUPP if it cannot be pinned.
func (m *Map) Pin(off, n int64) error {
	_, err := m.c.Do("pin %d %d %d", m.id, off, n)
	return err
}

// Lock is mlock(2).
func (m *Map) Lock() {
	m.c.n.c.t.Helper()
	m.c.Must("mlock %d", m.id)
}

// Unmap unmaps.
func (m *Map) Unmap() {
	m.c.n.c.t.Helper()
	m.c.Must("munmap %d", m.id)
}

// ParseStat reads the answer to a stat command.
func ParseStat(words []string) Stat {
	mode, _ := strconv.ParseUint(words[1], 8, 32)
	ino, _ := strconv.ParseUint(words[4], 10, 64)
	return Stat{Size: number(words[0]), Mode: uint32(mode), Nlink: int(number(words[2])), Blocks: number(words[3]), Ino: ino,
		UID: int(number(words[5])), GID: int(number(words[6])), Mtime: number(words[7])}
}

func number(s string) int64 {
	v, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("the client answered %q where a number belongs", s))
	}
	return v
}

func digits(p []byte) string {
	if len(p) == 0 {
		return "-"
	}
	return hex.EncodeToString(p)
}

func bytesOf(s string) []byte {
	if s == "-" {
		return nil
	}
	p, err := hex.DecodeString(s)
	if err != nil {
		panic(fmt.Sprintf("the client answered %q where bytes belong", s))
	}
	return p
}
