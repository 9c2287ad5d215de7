package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

// These verbs handle the settings of files, and of directories for files created in them:
// user.dsm.KEY. They check values here, with the code that the daemon uses, because the system call
// that sets an attribute answers with a number only.

const attributePrefix = "user.dsm."

// liveKeys are values that can be read but not set.
var liveKeys = []string{"version", "home", "subscribers", "owner"}

func getVerb(p *program, args []string) error {
	f := p.flags("get")
	output := f.String("output", "text", "`FORMAT`: text, for people, or json, for programs")
	if err := parse(f, args, 1, 100, "PATH [KEY...]"); err != nil {
		return err
	}
	if !slices.Contains(flagValues["output"], *output) {
		return fail(exitUsage, "get: --output %q: want text or json", *output)
	}
	keys := make([]string, 0, f.NArg()-1)
	for _, key := range f.Args()[1:] {
		key = strings.TrimPrefix(key, attributePrefix)
		if !slices.Contains(dsm.SettingKeys, key) && !slices.Contains(liveKeys, key) {
			return fail(exitUsage, "get: unknown setting %q: want one of %s, or of a file %s", key, strings.Join(dsm.SettingKeys, " "), strings.Join(liveKeys, " "))
		}
		keys = append(keys, key)
	}
	return p.atPath([]string{"get", "--output", *output}, f.Args(), func(path string) error {
		return p.showSettings(path, keys, *output)
	})
}

// showSettings prints the values of the keys, or of all settings: for one key the value alone,
// otherwise in the form that set takes.
func (p *program) showSettings(path string, keys []string, output string) error {
	wanted := keys
	if len(keys) == 0 {
		wanted = dsm.SettingKeys
	}
	values := make(map[string]string)
	var text strings.Builder
	for _, key := range wanted {
		value, err := readSetting(path, key)
		if err != nil {
			return err
		}
		values[key] = value
		if len(keys) != 1 {
			text.WriteString(key + "=")
		}
		text.WriteString(value + "\n")
	}
	if output == "json" {
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(values)
	}
	_, err := fmt.Fprint(p.out, text.String())
	return err
}

func setVerb(p *program, args []string) error {
	f := p.flags("set")
	if err := parse(f, args, 2, 100, "PATH KEY=VALUE..."); err != nil {
		return err
	}
	var changes []dsm.Setting
	for _, arg := range f.Args()[1:] {
		key, value, ok := strings.Cut(strings.TrimPrefix(arg, attributePrefix), "=")
		if !ok {
			return fail(exitUsage, "set: %q: want KEY=VALUE, with one of the keys %s", arg, strings.Join(dsm.SettingKeys, " "))
		}
		if err := checkKey("set", key); err != nil {
			return err
		}
		changes = append(changes, dsm.Setting{Key: key, Value: value})
	}
	return p.atPath([]string{"set"}, f.Args(), func(path string) error { return changeSettings(path, changes) })
}

func unsetVerb(p *program, args []string) error {
	f := p.flags("unset")
	if err := parse(f, args, 2, 100, "PATH KEY..."); err != nil {
		return err
	}
	var changes []dsm.Setting
	for _, arg := range f.Args()[1:] {
		key := strings.TrimPrefix(arg, attributePrefix)
		if err := checkKey("unset", key); err != nil {
			return err
		}
		changes = append(changes, dsm.Setting{Key: key})
	}
	return p.atPath([]string{"unset"}, f.Args(), func(path string) error { return changeSettings(path, changes) })
}

// checkKey refuses what is not a setting.
func checkKey(verb, key string) error {
	switch {
	case slices.Contains(dsm.SettingKeys, key):
		return nil
	case slices.Contains(liveKeys, key):
		return fail(exitUsage, "%s: %s cannot be set: it says how things are", verb, key)
	}
	return fail(exitUsage, "%s: unknown setting %q: want one of %s", verb, key, strings.Join(dsm.SettingKeys, " "))
}

// pathLimit is how long the daemon may take to answer about a path.
const pathLimit = 15 * time.Second

// atPath runs a verb about a path in a mount, the first of args, in a child that can be left
// behind; see supervise.
func (p *program) atPath(verb, args []string, do func(path string) error) error {
	m, inside, err := findPath(args[0])
	if err != nil {
		return err
	}
	at := filepath.Join(m.Point, inside)
	if !isSupervised() {
		return p.supervise(m.Point, pathLimit, slices.Concat(verb, []string{"--", at}, args[1:])...)
	}
	if _, err := os.Stat(at); err != nil {
		return touched(m.Point, err)
	}
	return touched(m.Point, do(at))
}

// readSetting reads user.dsm.KEY.
func readSetting(path, key string) (string, error) {
	var buf [64 << 10]byte // a list of nodes can be long
	n, err := unix.Getxattr(path, attributePrefix+key, buf[:])
	switch {
	case errors.Is(err, unix.ENODATA) && slices.Contains(liveKeys, key):
		return "", fail(exitUsage, "get: %s has no %s: only files have", path, key)
	case err != nil:
		return "", fmt.Errorf("%s: get %s: %w%s", path, key, err, inWords(err))
	}
	return string(buf[:n]), nil
}

// readSpec reads all settings.
func readSpec(path string) (dsm.Spec, error) {
	var spec dsm.Spec
	for _, key := range dsm.SettingKeys {
		value, err := readSetting(path, key)
		if err == nil {
			spec, err = spec.With(key, value)
		}
		if err != nil {
			return spec, err
		}
	}
	return spec, nil
}

// changeSettings makes all changes, or none if one of them cannot be made. An empty value stands
// for the value that the path would have if it were created now: that of its directory, and for the
// root of the filesystem that of a new cluster.
func changeSettings(path string, changes []dsm.Setting) error {
	spec, err := readSpec(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	before := spec
	for i, c := range changes {
		if c.Value == "" {
			if changes[i].Value, err = inherited(path, c.Key); err != nil {
				return err
			}
		}
		if spec, err = spec.With(c.Key, changes[i].Value); err != nil {
			return fail(exitUsage, "%s: %s=%s: %w", path, c.Key, changes[i].Value, err)
		}
	}
	if info.Mode().IsRegular() {
		if err := before.CheckChange(spec, info.Size()); err != nil {
			return fail(exitUsage, "%s: %w", path, err)
		}
	}
	if err := checkPlacement(path, before, spec); err != nil {
		return err
	}
	for _, c := range changes {
		if err := unix.Setxattr(path, attributePrefix+c.Key, []byte(c.Value), 0); err != nil {
			return fmt.Errorf("%s: set %s=%s: %w%s", path, c.Key, c.Value, err, inWords(err))
		}
	}
	return nil
}

// checkPlacement refuses a placement that names no member of the cluster.
func checkPlacement(path string, before, now dsm.Spec) error {
	word, ok := now.Placement.Node()
	if !ok || now.Placement == before.Placement {
		return nil
	}
	m, _, err := findPath(path)
	if err != nil {
		return err
	}
	if err := checkMember(m.Point, word, "auto, spread, one, or "); err != nil {
		return fail(exitUsage, "%s: placement=%s: %w", path, word, err)
	}
	return nil
}

// checkMember refuses a word that is neither the name nor the id of a member of the cluster. besides are other words that may be there.
func checkMember(point, word, besides string) error {
	members, err := lookMembers(point)
	if err != nil {
		return err
	}
	var names []string
	for _, x := range members {
		if x.Name == word || x.ID == word {
			return nil
		}
		names = append(names, x.Name)
	}
	slices.Sort(names)
	return fmt.Errorf("no member has this name or id: want %sone of the members %s", besides, strings.Join(names, " "))
}

// inherited returns the value that a setting of the path would have if it were created now.
func inherited(path, key string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	all, err := mountinfo.Read()
	if err != nil {
		return "", err
	}
	if m, ok := mountinfo.Top(all, real); ok && m.Type == mountType {
		value, _ := dsm.DefaultSpec().Setting(key)
		return value, nil
	}
	return readSetting(filepath.Dir(real), key)
}

// inWords explains an error of the daemon whose number alone does not say enough.
func inWords(err error) string {
	for errno, words := range map[error]string{
		unix.EACCES:    "; that takes the right to write the file or directory",
		unix.EPERM:     "; that takes the right to write the file or directory",
		unix.EBUSY:     "; it is fixed while the file is not empty",
		unix.EINVAL:    "; the log of the daemon says what was expected (dsmfs status shows log_file)",
		unix.ENOSPC:    "; a node has too little memory for it, the log of the daemon says which (dsmfs members shows what they have)",
		unix.EIO:       "; too few nodes that vote on names answer, or the home of the file does not (dsmfs members)",
		unix.ETIMEDOUT: "; too few nodes that vote on names answer, or the home of the file does not (dsmfs members)",
	} {
		if errors.Is(err, errno) {
			return words
		}
	}
	return ""
}
