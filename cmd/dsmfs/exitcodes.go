package main

import (
	"errors"
	"fmt"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// exitCode is the exit status of dsmfs. The numbers are permanent, because scripts and service
// managers rely on them. docs/exit-codes.md explains them.
type exitCode int

const (
	exitOK       exitCode = 0
	exitOther    exitCode = 1
	exitUsage    exitCode = 2
	exitPoint    exitCode = 3
	exitBusy     exitCode = 4
	exitState    exitCode = 5
	exitJoin     exitCode = 6
	exitListen   exitCode = 7
	exitMachine  exitCode = 8
	exitInsecure exitCode = 9
	exitDied     exitCode = 10
	exitNoMount  exitCode = 11
	exitSilent   exitCode = 12
	exitLeave    exitCode = 13
	exitDev      exitCode = 14
)

// exitTexts is printed by help, in the order of the numbers.
var exitTexts = []string{
	exitOK:       "done; after mount: the mount is usable",
	exitOther:    "any other error",
	exitUsage:    "unknown verb, flag, option or value",
	exitPoint:    "the mount point cannot be made or is not a directory",
	exitBusy:     "the mount point is mounted or in use",
	exitState:    "the state directory is in use or not writable",
	exitJoin:     "no node to join answered, or the cluster refused this node",
	exitListen:   "cannot listen on the address",
	exitMachine:  "the machine lacks something: /dev/fuse, root or fusermount3",
	exitInsecure: "the addresses need --token, or --insecure",
	exitDied:     "the daemon ended before the mount was usable",
	exitNoMount:  "there is no dsmfs mount",
	exitSilent:   "the daemon of the mount does not answer",
	exitLeave:    "unmounted, but the node did not leave its cluster cleanly",
	exitDev:      "a node of dsmfs dev ended by itself",
}

// exitError is an error with the exit code of the program.
type exitError struct {
	code exitCode
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// fail returns an error that ends the program with the code.
func fail(c exitCode, format string, args ...any) error {
	return &exitError{c, fmt.Errorf(format, args...)}
}

// withCode gives err the code unless it has one already.
func withCode(c exitCode, err error) error {
	var e *exitError
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &exitError{c, err}
}

// codeOf returns the exit code of an error.
func codeOf(err error) exitCode {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errs.Is(err, errs.Invalid):
		return exitUsage
	}
	return exitOther
}
