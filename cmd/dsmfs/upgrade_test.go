package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestOfThisProgram: a daemon that serves counts as upgraded only if it is of the program that asked.
func TestOfThisProgram(t *testing.T) {
	other := exec.Command("cat")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = other.Wait()
	}()
	for _, c := range []struct {
		text string
		want bool
	}{
		{fmt.Sprintf("pid %d, version 1\n", os.Getpid()), true},
		{fmt.Sprintf("pid %d, version 1\n", other.Process.Pid), false},
		{"pid 0, version 1\n", false},
		{"", false},
	} {
		if got := ofThisProgram(c.text); got != c.want {
			t.Errorf("%q: %v", c.text, got)
		}
	}
}
