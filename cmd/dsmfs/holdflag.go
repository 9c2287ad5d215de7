package main

import (
	"fmt"
	"os"

	"github.com/dsmfs/dsmfs/internal/hold"
)

// holdMode is the value of --hold.
type holdMode string

const (
	// holdAuto has the mount outlive its daemon as far as that goes. A program may have what cannot: the mount is lost with the daemon from then on.
	holdAuto holdMode = "auto"
	// holdOn refuses what cannot outlive the daemon.
	holdOn  holdMode = "on"
	holdOff holdMode = "off"
)

// String and the others implement pflag.Value.
func (h *holdMode) String() string { return string(*h) }

func (h *holdMode) Set(s string) error {
	switch s {
	case "true":
		s = string(holdOn)
	case "false":
		s = string(holdOff)
	}
	switch m := holdMode(s); m {
	case holdAuto, holdOn, holdOff:
		*h = m
		return nil
	}
	return fmt.Errorf("%q: want auto, on or off", s)
}

func (*holdMode) Type() string { return "when" }

// checkHold refuses what does not go with --hold.
func (c *mountConfig) checkHold() error {
	switch {
	case c.hold != holdOn:
		return nil
	case c.noMount:
		return fail(exitUsage, "--hold keeps a mount: it does not go with --no-mount")
	case os.Geteuid() != 0:
		return fail(exitUsage, "--hold needs root")
	}
	return nil
}

// notHeld returns why the mount gets no holder, "" if it gets one.
func (c *mountConfig) notHeld(root bool, kernel string) string {
	switch {
	case c.hold == holdOff:
		return "--hold=off"
	case c.hold == holdOn:
		return ""
	case c.cannotHold != "":
		return c.cannotHold
	case c.noMount:
		return "--no-mount"
	case !root:
		return "it takes a mount by root"
	case !atLeast(kernel, 6, 9):
		return "it takes Linux 6.9, and this is " + kernel
	}
	return ""
}

// beginHold makes what a holder holds, nil if there is to be none, or can be none.
func (c *mountConfig) beginHold() (*hold.Memory, error) {
	if c.notHeld(os.Geteuid() == 0, kernelRelease()) != "" {
		return nil, nil
	}
	mem, err := hold.Create()
	switch {
	case err == nil:
		return mem, nil
	case c.hold == holdAuto: // a limit on the address space, or on the size of files
		c.cannotHold = err.Error()
		return nil, nil
	}
	return nil, fail(exitMachine, "hold: %w", err)
}

// atLeast reports whether a release of the kernel is that version or a later one.
func atLeast(release string, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(release, "%d.%d", &a, &b)
	return err == nil && (a > major || a == major && b >= minor)
}

// lostBecause returns why no other daemon follows this one if it is killed, "" if one does, as far as is known.
func (n *node) lostBecause() string {
	if why := n.lost.Load(); why != nil {
		return *why
	}
	h := n.cfg.held
	switch {
	case h != nil && h.mem.Word(hold.Refused).Load() != 0:
		return "see the log"
	case h != nil && h.mem.Word(hold.Left).Load() != 0:
		return "the other nodes of the cluster have gone"
	case h != nil:
		return ""
	}
	if why := n.cfg.notHeld(os.Geteuid() == 0, kernelRelease()); why != "" {
		return why
	}
	return "there is no holder"
}
