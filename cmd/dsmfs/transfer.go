package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// areaVerb is what changes a single file other than by its settings.
func areaVerb(p *program, args []string) error {
	const usage = "transfer PATH [NODE]"
	f := p.flags("area")
	limit := f.Duration("timeout", time.Minute, "how long to wait for the daemon of the mount")
	if err := parse(f, args, 2, 3, usage); err != nil {
		return err
	}
	if f.Arg(0) != "transfer" {
		return fail(exitUsage, "area: unknown word %q: usage: dsmfs area %s; see dsmfs help area", f.Arg(0), usage)
	}
	m, inside, err := findPath(f.Arg(1))
	if err != nil {
		return err
	}
	if !isSupervised() {
		at := []string{"area", "--", "transfer", filepath.Join(m.Point, inside)}
		return p.supervise(m.Point, *limit, append(at, f.Args()[2:]...)...)
	}
	to := "here"
	if f.NArg() > 2 {
		to = f.Arg(2)
	}
	return touched(m.Point, p.transfer(m.Point, inside, to))
}

// transfer makes a node the owner of a versioned file, and says who it is now.
func (p *program) transfer(point, inside, to string) error {
	path := filepath.Join(point, inside)
	mode, err := readSetting(path, "mode")
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() || mode != dsm.ModeVersioned.String() {
		if err != nil {
			return err
		}
		return fail(exitUsage, "area: %s: only a file with mode=versioned has an owner; its mode is %s", path, mode)
	}
	if to != "here" {
		if err := checkMember(point, to, ""); err != nil {
			return fail(exitUsage, "area: %s: %w", to, err)
		}
	}
	control := filepath.Join(point, ".dsm", "areas", inside, "owner")
	f, err := os.OpenFile(control, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(to + "\n")
		_ = f.Close() // the write has been answered
	}
	owner, oerr := readSetting(path, "owner")
	if err != nil {
		return fmt.Errorf("area: %s: %w%s", path, err, notMoved(err, owner))
	}
	if oerr != nil {
		return oerr
	}
	_, err = fmt.Fprintf(p.out, "%s is owned by %s\n", path, owner)
	return err
}

// notMoved explains why an area keeps its owner.
func notMoved(err error, owner string) string {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Sprintf(": programs of node %s have it open for writing, or it is on its way", owner)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf(": that takes the right to write the file; and node %s, which owns it, gives it to others, or one of these takes it", owner)
	case owner == "", owner == "-": // nobody is asked but the voters
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ETIMEDOUT):
		return fmt.Sprintf(": the owner, node %s, or the node that is to own it does not answer; the file may still be moved later (dsmfs members)", owner)
	}
	return inWords(err)
}
