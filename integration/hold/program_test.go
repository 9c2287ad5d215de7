package hold_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// A program runs in a process of its own. It is told to begin and to end, and does steps in between. In the end it checks what
// should be there.

// programWord is the first argument of a test process that is a program.
const programWord = "program"

// workload is what a program does.
type workload interface {
	// begin prepares the workload in a directory of its own.
	begin(dir string, rnd *rand.Rand) error
	// step does something, and looks at some of what should be there.
	step() error
	// check looks at all of it.
	check() error
}

// kinds are the workloads, by name.
var kinds = []string{"maps", "attached", "writes", "appends", "names", "cuts", "counter1", "counter2", "owner"}

func newWorkload(kind string) workload {
	switch kind {
	case "maps":
		return new(maps)
	case "writes":
		return new(writes)
	case "appends":
		return new(appends)
	case "names":
		return new(names)
	case "cuts":
		return new(sizes)
	case "owner":
		return new(owner)
	case "attached":
		return new(attached)
	case "publishes":
		return new(publishes)
	case "follows":
		return new(follows)
	case "watches":
		return new(watches)
	case "looksAtAdded":
		return looksAtAdded{}
	case "looksAtJoined":
		return looksAtJoined{}
	case "looks":
		return looks{}
	default:
		if strings.HasPrefix(kind, "adds") {
			return new(addsAttached)
		}
		if strings.HasPrefix(kind, "joins") {
			return new(joins)
		}
		if strings.HasPrefix(kind, "shares") {
			return new(shares)
		}
		return new(counter)
	}
}

// program is a process: it answers "begin SEED" and "end".
func program(kind, mount string) int {
	lines := bufio.NewScanner(os.Stdin)
	w := newWorkload(kind)
	answer := func(err error, steps int) {
		if err != nil {
			fmt.Printf("fail after %d steps: %v\n", steps, err)
			return
		}
		fmt.Printf("ok %d steps\n", steps)
	}
	if !lines.Scan() {
		return 1
	}
	var seed uint64
	if _, err := fmt.Sscanf(lines.Text(), "begin %d", &seed); err != nil {
		answer(err, 0)
		return 1
	}
	err := os.MkdirAll(filepath.Join(mount, "shared"), 0o755)
	if err == nil {
		err = os.MkdirAll(filepath.Join(mount, kind), 0o755)
	}
	if err == nil {
		err = w.begin(filepath.Join(mount, kind), rand.New(rand.NewPCG(seed, 1)))
	}
	answer(err, 0)
	if err != nil {
		return 1
	}
	end := make(chan struct{})
	go func() {
		lines.Scan()
		close(end)
	}()
	steps := 0
	for ended := false; err == nil && !ended; steps++ {
		if err = w.step(); err != nil {
			break
		}
		select {
		case <-end:
			ended = true
		default:
		}
	}
	<-end
	if err == nil {
		err = w.check()
	}
	answer(err, steps)
	for lines.Scan() {
	}
	return 0
}
