package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxInterpreters is how deep scripts may run scripts, as in the kernel.
const maxInterpreters = 5

// planeText ends every answer of unshimmed.
const planeText = ": it stays on the page-cache plane"

// unshimmed returns in one line why a preloaded library has no effect in a program. It returns
// nothing if the library has an effect, or if the program cannot be run anyway. The program gets the library all the same, because it may start other programs
// on which the library has an effect. The exception is breaks: the loader of the program would refuse to run it with the library.
func unshimmed(path string) (why string, breaks bool) {
	for range maxInterpreters {
		f, err := os.Open(path)
		if err != nil {
			return unreadable(path), false
		}
		head := make([]byte, 256) // as much as the kernel looks at
		n, err := io.ReadFull(f, head)
		_ = f.Close() // only read
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", false
		}
		interpreter, ok := interpreterOf(head[:n])
		if !ok {
			return unshimmedBinary(path)
		}
		path = interpreter
	}
	return "", false
}

// unreadable returns the answer for a program that may be run but not read.
func unreadable(path string) string {
	if unix.Access(path, unix.X_OK) != nil {
		return ""
	}
	return privileged(path)
}

// interpreterOf returns the program that runs a script: the one in its first line, and for
// "#!/usr/bin/env python3" python3.
func interpreterOf(head []byte) (path string, ok bool) {
	rest, ok := bytes.CutPrefix(head, []byte("#!"))
	if !ok {
		return "", false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", false
	}
	if filepath.Base(words[0]) == "env" {
		for _, w := range words[1:] {
			if strings.HasPrefix(w, "-") || strings.Contains(w, "=") {
				continue
			}
			if found, err := exec.LookPath(w); err == nil {
				return found, true
			}
			break
		}
	}
	return words[0], true
}

// unshimmedBinary is unshimmed for a program that is not a script.
func unshimmedBinary(path string) (why string, breaks bool) {
	if why := privileged(path); why != "" {
		return why, false
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }() // only read
	loader := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return "", false
			}
			loader = string(bytes.TrimRight(b, "\x00"))
		}
	}
	switch {
	case isGo(f, path):
		return fmt.Sprintf("%s is a Go program, which makes its system calls itself%s", path, planeText), false
	case loader == "":
		return fmt.Sprintf("%s is statically linked, so no library can be put before it%s", path, planeText), false
	case f.Class != elf.ELFCLASS64 || f.Machine != hostMachine():
		return fmt.Sprintf("%s is for another architecture than this dsmfs (%s)%s", path, runtime.GOARCH, planeText), false
	case strings.Contains(filepath.Base(loader), "musl"):
		return fmt.Sprintf("%s is linked with musl, the library that dsmfs loads with glibc%s", path, planeText), true
	}
	return "", false
}

// isGo reports whether the Go toolchain linked the program.
func isGo(f *elf.File, path string) bool {
	if f.Section(".note.go.buildid") != nil {
		return true
	}
	_, err := buildinfo.ReadFile(path)
	return err == nil
}

// hostMachine returns the architecture of this program, which is that of the library in it.
func hostMachine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// privileged reports why the loader ignores LD_PRELOAD: the program has privileges that its user
// lacks, by setuid, setgid or capabilities.
func privileged(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	s := info.Sys().(*syscall.Stat_t)
	gains := ""
	switch {
	case info.Mode()&os.ModeSetuid != 0 && int(s.Uid) != os.Geteuid():
		gains = "setuid"
	case info.Mode()&os.ModeSetgid != 0 && int(s.Gid) != os.Getegid():
		gains = "setgid"
	case os.Geteuid() != 0 && hasCapabilities(path):
		gains = "given capabilities"
	default:
		return ""
	}
	return fmt.Sprintf("%s is %s: the loader ignores the library%s", path, gains, planeText)
}

func hasCapabilities(path string) bool {
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}
