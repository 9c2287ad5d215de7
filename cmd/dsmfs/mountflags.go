package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// mountConfig has the options of mount. The field background and those near it are about the
// process, the others about the node.
type mountConfig struct {
	point       string
	join        []string
	listen      string
	advertise   string
	name        string
	insecure    bool
	token       string
	memory      byteSize
	state       string
	timeout     time.Duration
	unmount     time.Duration
	lease       time.Duration
	scrub       time.Duration
	tracking    string
	passthrough string
	logLevel    string
	logFile     string
	allowOther  bool
	noMount     bool
	hold        holdMode
	cannotHold  string // why there is no holder although --hold=auto would have one
	force       bool
	foreground  bool
	detached    bool // this is the child that runs in the background
}

// maxName bounds the name of a node: gossip has no room for more.
const maxName = 200

// The bounds of --lease. With less, a busy machine would have its node evicted all the time.
const leastLease, mostLease = 500 * time.Millisecond, time.Minute

// detachedFlag is hidden: the parent gives it to the child that runs in the background.
const detachedFlag = "detached"

// unoptional are the flags that are not mount options.
var unoptional = []string{"foreground", "options", "help", detachedFlag}

// registerMountFlags declares the flags of mount. Every one of them but -o is also a mount option.
func registerMountFlags(f *pflag.FlagSet, c *mountConfig) {
	c.memory = defaultMemory()
	f.StringArrayVar(&c.join, "join", nil, "join the cluster of the node at `HOST[:PORT]`; more than once: the first that answers")
	f.StringVar(&c.listen, "listen", "127.0.0.1:"+defaultPort, "`HOST:PORT` to listen on, TCP and UDP; port 0 takes a free one; who joins another machine listens on all addresses unless told otherwise")
	f.StringVar(&c.advertise, "advertise", "", "`HOST[:PORT]` at which other nodes reach this one, if not that of --listen")
	f.BoolVar(&c.insecure, "insecure", false, "talk to other machines without encryption or authentication: everybody who reaches the port is believed")
	f.StringVar(&c.token, "token", "", "`TOKEN` of the cluster to join, as dsmfs token prints it, or @FILE with it")
	f.StringVar(&c.name, "name", "", "`NAME` of the node; default: that of the machine, and the port if it is another than "+defaultPort)
	f.Var(&c.memory, "memory", "bytes that files may take on this node: all full files, in two copies, and its part of the demand files; the daemon takes up to a quarter more; half of what there is unless set")
	f.StringVar(&c.state, "state", "", "`DIR` for the lock, process id and socket of this mount; default: /run/dsmfs/NAME-OF-MNT, without root below $XDG_RUNTIME_DIR")
	f.DurationVar(&c.timeout, "fault-timeout", 30*time.Second, "end accesses that wait for other nodes after this")
	f.DurationVar(&c.lease, "lease", catalog.DefaultLease, "of a node that starts a cluster: nodes that do not answer for this long are evicted, and others take over what they had")
	f.DurationVar(&c.scrub, "scrub", 24*time.Hour, "compare the copies of files with the bytes at this node, if it is their home, each time that so long has passed; 0: never")
	f.DurationVar(&c.unmount, "unmount-timeout", fs.DefaultUnmountTimeout, "when the node is told to end, let programs use the mount this long before it is taken away from them")
	f.StringVar(&c.tracking, "tracking", "auto", "`WAY` in which stores of attached programs are found: auto, async, sync or compare; see dsmfs doctor")
	f.StringVar(&c.passthrough, "passthrough", "auto", "`WHEN` to let programs have the memory of files with user.dsm.access=direct: auto, where it works, or off; see dsmfs doctor")
	f.StringVar(&c.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
	f.StringVar(&c.logFile, "log-file", "", "`FILE` to append the log to; default: /var/log/dsmfs/NAME-OF-MNT.log, without root below $XDG_STATE_HOME, with --state DIR/log, with -f standard error")
	f.BoolVar(&c.allowOther, "allow-other", os.Geteuid() == 0, "let other users in, as far as owner and mode of the files allow")
	f.BoolVar(&c.noMount, "no-mount", false, "mount nothing: programs attach at DIR/attach of --state; MNT, which need not exist, only names the node")
	c.hold = holdAuto
	f.Var(&c.hold, "hold", "`WHEN` to keep the mount if the daemon is killed, so that another takes over and programs go on: auto, as far as that goes with what programs use (root, Linux 6.9), on, which refuses what it does not go with, or off")
	f.Lookup("hold").NoOptDefVal = string(holdOn)
	f.BoolVar(&c.force, "force", false, "replace a dead mount at MNT")
	f.BoolVarP(&c.foreground, "foreground", "f", false, "do not go into the background")
	f.BoolVar(&c.detached, detachedFlag, false, "")
	if err := f.MarkHidden(detachedFlag); err != nil {
		panic(err) // the flag is declared one line above
	}
}

// ignoredOptions are options that mount(8), fstab and systemd know, and that mean nothing to a
// filesystem or ask for what dsmfs does anyway.
var ignoredOptions = []string{
	"rw", "auto", "noauto", "_netdev", "nofail", "user", "users", "nouser", "owner", "group", "defaults",
	"nosuid", "nodev", "exec", "async", "relatime", "noatime", "nodiratime", "default_permissions",
}

// ignoredPrefixes are the prefixes of options for other programs.
var ignoredPrefixes = []string{"x-", "X-", "comment="}

// applyOptions sets flags from lists given with -o: k=v,k2. "-" and "_" are the same in names.
func applyOptions(f *pflag.FlagSet, lists []string) error {
	var unknown []string
	for _, option := range strings.Split(strings.Join(lists, ","), ",") {
		option = strings.TrimSpace(option)
		ignored := func(prefix string) bool { return strings.HasPrefix(option, prefix) }
		if option == "" || slices.Contains(ignoredOptions, option) || slices.ContainsFunc(ignoredPrefixes, ignored) {
			continue
		}
		key, value, given := strings.Cut(option, "=")
		flag := f.Lookup(strings.ReplaceAll(key, "_", "-"))
		switch {
		case flag == nil || slices.Contains(unoptional, flag.Name):
			unknown = append(unknown, key)
			continue
		case !given && flag.NoOptDefVal == "":
			return fail(exitUsage, "mount: -o %s needs a value: %s=%s", key, key, strings.ToUpper(flag.Value.Type()))
		case !given:
			value = flag.NoOptDefVal
		}
		if err := f.Set(flag.Name, value); err != nil {
			return fail(exitUsage, "mount: -o %s: %w", option, err)
		}
	}
	if len(unknown) > 0 {
		return fail(exitUsage, "mount: unknown option -o %s; known: %s", strings.Join(unknown, ", "), strings.Join(optionNames(f), " "))
	}
	return nil
}

// optionNames lists the options that -o takes.
func optionNames(f *pflag.FlagSet) []string {
	var names []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(unoptional, flag.Name) {
			names = append(names, flag.Name)
		}
	})
	return names
}

// parseMount reads the command line of mount.
func parseMount(p *program, args []string) (mountConfig, error) {
	var c mountConfig
	f := p.flags("mount")
	registerMountFlags(f, &c)
	options := f.StringArrayP("options", "o", nil, "the same as mount options: `K=V,K2,...`")
	if err := parse(f, args, 1, 1, "MNT [flags]"); err != nil {
		return c, err
	}
	c.point = f.Arg(0)
	if err := applyOptions(f, *options); err != nil {
		return c, err
	}
	return c, c.check(f.Changed("listen"))
}

// check completes the addresses and refuses values that make no sense.
func (c *mountConfig) check(listenGiven bool) error {
	var err error
	if c.listen, err = withPort("listen", c.listen); err != nil {
		return err
	}
	if c.advertise != "" && strings.Contains(c.advertise, ":") {
		if c.advertise, err = withPort("advertise", c.advertise); err != nil {
			return err
		}
	}
	for i := range c.join {
		if c.join[i], err = withPort("join", c.join[i]); err != nil {
			return err
		}
	}
	if err := c.checkHold(); err != nil {
		return err
	}
	heir := follows() // it has been admitted, and has the memory
	if err := checkMemory(c.memory, usableMemory()); err != nil && !heir {
		return err
	}
	if c.timeout <= 0 {
		return fail(exitUsage, "--fault-timeout %v: want more than 0, for example 30s", c.timeout)
	}
	if c.unmount <= 0 {
		return fail(exitUsage, "--unmount-timeout %v: want more than 0, for example 5s", c.unmount)
	}
	if c.lease < leastLease || c.lease > mostLease {
		return fail(exitUsage, "--lease %v: want %v to %v, for example 5s", c.lease, leastLease, mostLease)
	}
	if c.scrub != 0 && c.scrub < leastScrub {
		return fail(exitUsage, "--scrub %v: want 0, or %v or more, for example 24h", c.scrub, leastScrub)
	}
	if strings.ContainsAny(c.name, " \t\n=") || len(c.name) > maxName {
		return fail(exitUsage, "--name %q: want at most %d bytes without blanks and =", c.name, maxName)
	}
	if root := os.Geteuid() == 0; c.allowOther != root {
		return fail(exitUsage, "--allow-other=%v: a mount made by root is for every user whom owner and mode of a file let in, any other for its user alone; "+
			"this cannot be changed yet", c.allowOther)
	}
	if _, _, err := c.trackingMode(); err != nil {
		return fail(exitUsage, "--tracking: %w", err)
	}
	if !slices.Contains(flagValues["passthrough"], c.passthrough) {
		return fail(exitUsage, "--passthrough %q: want auto or off", c.passthrough)
	}
	if _, err := parseLevel(c.logLevel); err != nil {
		return err
	}
	if heir {
		return nil
	}
	if err := c.readToken(); err != nil {
		return err
	}
	if c.token != "" && !listenGiven && c.otherMachine() >= 0 {
		c.listen = ":" + defaultPort
	}
	return c.checkSecurity()
}

// otherMachine returns the index of the first node to join that is not on this machine, or -1.
func (c *mountConfig) otherMachine() int {
	return slices.IndexFunc(c.join, func(addr string) bool { return !isLoopback(addr) })
}

// readToken replaces @FILE by what is in the file, and checks the token.
func (c *mountConfig) readToken() error {
	if file, ok := strings.CutPrefix(c.token, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return fail(exitUsage, "--token: %w", err)
		}
		c.token = strings.TrimSpace(string(text))
		if c.token == "" {
			return fail(exitUsage, "--token: %s is empty", file)
		}
	}
	switch {
	case c.token == "":
		return nil
	case c.insecure:
		return fail(exitUsage, "--token and --insecure: a cluster that was started with --insecure has no tokens")
	case len(c.join) == 0:
		return fail(exitUsage, "--token needs --join HOST: a new cluster makes its own token, which dsmfs token prints")
	}
	if _, err := trust.ParseToken(c.token); err != nil {
		return fail(exitUsage, "--token: %w", err)
	}
	return nil
}

// checkSecurity refuses to join other machines without a token, unless everybody is to be believed,
// and to join nodes that could not answer. The error says what to type.
func (c *mountConfig) checkSecurity() error {
	other := c.otherMachine()
	if other < 0 {
		return nil
	}
	if !c.insecure && c.token == "" {
		return fail(exitInsecure, "--join %s is not on this machine: add --token T, with the token that dsmfs token MNT prints there. "+
			"If the cluster was started with --insecure, in a network where everybody may read and change everything, type: %s", c.join[other], c.openCommand())
	}
	if isLoopback(c.listen) {
		return fail(exitUsage, "--join %s is another machine, and could not reach this one at %s. Type: %s", c.join[other], c.listen, c.openCommand())
	}
	return nil
}

// openCommand returns the command that opens the node to other machines.
func (c *mountConfig) openCommand() string {
	listen := c.listen
	if host, port, err := net.SplitHostPort(listen); err == nil && host != "" && isLoopback(listen) {
		listen = ":" + port
	}
	words := []string{"dsmfs mount", c.point, "--listen", listen}
	if c.token == "" {
		words = append(words, "--insecure")
	}
	for _, addr := range c.join {
		words = append(words, "--join", addr)
	}
	if c.token != "" {
		words = append(words, "--token", "TOKEN")
	}
	return strings.Join(words, " ")
}

// parseLevel reads a level of the log.
func parseLevel(s string) (slog.Level, error) {
	var l slog.Level
	if !slices.Contains(flagValues["log-level"], s) {
		return 0, fail(exitUsage, "--log-level %q: want debug, info, warn or error", s)
	}
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return 0, fmt.Errorf("log level: %w", err)
	}
	return l, nil
}

// passthroughOff returns why files cannot be direct although the kernel may support it, "" if they
// can.
func (c *mountConfig) passthroughOff() string {
	if c.hold == holdOn {
		return "--hold"
	}
	if c.passthrough == "off" {
		return "--passthrough=off"
	}
	return ""
}

// trackingMode returns how stores of attached programs are found on this machine, and why not in a
// better way.
func (c *mountConfig) trackingMode() (mode uffd.Mode, reason string, err error) {
	forced := c.tracking
	if forced == "auto" {
		forced = ""
	}
	features := uffd.Probe()
	if mode, err = uffd.Choose(features, forced); err != nil {
		return 0, "", err
	}
	best, err := uffd.Choose(features, "")
	switch {
	case err == nil && best != mode:
		reason = "--tracking says so"
	case mode == uffd.Sync:
		reason = features.Async.Reason
	case mode == uffd.Compare:
		reason = features.Async.Reason + "; " + features.Sync.Reason
	}
	return mode, reason, nil
}
