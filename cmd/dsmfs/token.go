package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// tokenVerb prints a token with which other machines join.
func tokenVerb(p *program, args []string) error {
	f := p.flags("token")
	rotate := f.Bool("rotate", false, "make another token, and all earlier ones invalid: also for machines that have left and kept theirs")
	ttl := f.Duration("ttl", 0, "print a token that expires after this `TIME`, for example 1h")
	limit := f.Duration("timeout", 15*time.Second, "how long to wait for the daemon of the mount")
	if err := parse(f, args, 1, 1, "MNT [flags]"); err != nil {
		return err
	}
	if *ttl != 0 && *ttl < time.Second {
		return fail(exitUsage, "token: --ttl %v: want at least 1s, for example 1h", *ttl)
	}
	m, _, err := findPath(f.Arg(0))
	if err != nil {
		return err
	}
	if !isSupervised() {
		return p.supervise(m.Point, *limit, "token", fmt.Sprintf("--rotate=%v", *rotate), "--ttl", ttl.String(), "--", m.Point)
	}
	return touched(m.Point, p.token(m.Point, *rotate, *ttl))
}

// token makes a token if asked to, and prints it; otherwise the one that does not expire.
func (p *program) token(point string, rotate bool, ttl time.Duration) error {
	order, seconds := "", int64(ttl/time.Second)
	switch {
	case rotate && seconds > 0:
		order = fmt.Sprintf("rotate %d", seconds)
	case rotate:
		order = "rotate"
	case seconds > 0:
		order = fmt.Sprintf("ttl %d", seconds)
	}
	text, err := "", error(nil)
	if order != "" {
		text, err = orderControl(point, "token", order)
	} else {
		text, err = readControl(point, "token")
	}
	if err != nil {
		return explained(point, err)
	}
	tokens, err := parseNested(text)
	if err != nil {
		return err
	}
	token := ""
	for _, t := range tokens { // a daemon of before this program answers an order with all tokens, the newest last
		if order != "" || t.values["expires"] == "0" && token == "" {
			token = t.key
		}
	}
	if token == "" {
		return fail(exitOther, "token: the cluster has no token that does not expire: make one with --rotate, or one that does with --ttl 1h")
	}
	_, err = fmt.Fprintln(p.out, token)
	return err
}

// writeControl writes a file of /.dsm. Only a supervised process may call it.
func writeControl(point, file, value string) error {
	f, err := os.OpenFile(filepath.Join(point, ".dsm", file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

// orderControl writes a file of /.dsm, and returns the answer. Others may give orders at the same time. Only a supervised process may call it.
func orderControl(point, file, value string) (string, error) {
	f, err := os.OpenFile(filepath.Join(point, ".dsm", file), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // the answer tells whether the order was carried out
	if _, err := f.WriteString(value + "\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	return string(text), err
}

// explained says what an error of the file token means.
func explained(point string, err error) error {
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return fail(exitOther, "token: the cluster of %s was started with --insecure: others join with --insecure too, and need no token", point)
	case errors.Is(err, os.ErrPermission):
		return fail(exitOther, "token: only the user who has mounted %s may see the token", point)
	case errors.Is(err, syscall.EBUSY):
		return fail(exitOther, "token: there are too many tokens that have not expired; --rotate makes all of them invalid")
	}
	return err
}
