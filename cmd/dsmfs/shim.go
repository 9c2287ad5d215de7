package main

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimFiles has the preloaded library if this program was built with it: the
// directory is there in any case.
//
//go:embed shim
var shimFiles embed.FS

// shimName is the library in shimFiles.
const shimName = "shim/libdsmfs.so"

// shimPath returns the path of a file with the library, for LD_PRELOAD. The file stays, because
// programs that are started by programs open it at any time, also as another user. Its name
// contains the hash of its content, so that versions do not get in each other's way, and it appears
// there whole.
func shimPath(library []byte, dirs []string) (string, error) {
	var all error
	for _, dir := range dirs {
		path, err := storeShim(library, dir)
		if err == nil {
			return path, nil
		}
		all = errors.Join(all, err)
	}
	return "", all
}

// shimDirs returns where the library may be, best place first. The places are beside the states,
// under names that no mount point has.
func shimDirs() []string {
	dirs := []string{stateBase() + "-lib"}
	if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "dsmfs"))
	}
	return append(dirs, filepath.Join(os.TempDir(), fmt.Sprintf("dsmfs-%d-lib", os.Getuid())))
}

// storeShim puts the library into a directory unless it is there. It requires that nobody else can
// have put something else there, and that the loader can map a library from it: /run is noexec on
// some systems.
func storeShim(library []byte, dir string) (string, error) {
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, ": \t\n") {
		return "", fmt.Errorf("%q: LD_PRELOAD cannot have such a path", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := onlyOurs(dir); err != nil {
		return "", err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	if s.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s is mounted noexec", dir)
	}
	sum := sha256.Sum256(library)
	path := filepath.Join(dir, "libdsmfs-"+hex.EncodeToString(sum[:8])+".so")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, library) {
		return path, nil
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(library)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return path, nil
}

// onlyOurs checks that nobody else can change what is in a directory, because every program that is
// started runs the library there.
func onlyOurs(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if !info.IsDir() || info.Mode()&0o022 != 0 || int(owner) != os.Geteuid() && owner != 0 {
		return fmt.Errorf("%s: %v of user %d: others could change the library there", dir, info.Mode(), owner)
	}
	return nil
}

// embeddedShim returns the library, nil if this program was built without.
func embeddedShim() ([]byte, error) {
	library, err := shimFiles.ReadFile(shimName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return library, err
}
