package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
)

// profileVariable names the environment variable that makes a daemon profile itself. Its value is
// the prefix of the files: PREFIX.cpu, over the daemon's whole life, and PREFIX.heap, when it ends.
const profileVariable = "DSMFS_PROFILE"

// startProfile starts to profile if the environment asks for it; stop writes the profiles.
func startProfile() (stop func() error, err error) {
	prefix := os.Getenv(profileVariable)
	if prefix == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(prefix + ".cpu")
	if err != nil {
		return nil, fail(exitUsage, "%s: %w", profileVariable, err)
	}
	heap, err := os.Create(prefix + ".heap")
	if err == nil {
		err = pprof.StartCPUProfile(cpu)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", profileVariable, err), cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		runtime.GC() // so that the heap profile is up to date
		return errors.Join(pprof.WriteHeapProfile(heap), heap.Close(), cpu.Close())
	}, nil
}
