package control

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Info is what /.dsm shows of other parts of the daemon.
type Info interface {
	// Version returns the version of the program.
	Version() string
	// Self returns the id of this node.
	Self() dsm.NodeID
	// Members returns the nodes of the cluster, by id.
	Members() []Member
	// Config returns the settings that the daemon runs with, in a fixed order.
	Config() []Stat
	LogLevel() slog.Level
	SetLogLevel(slog.Level)
	// Cluster returns what the nodes agree on besides, in a fixed order.
	Cluster() []Stat
	// RecoverCluster makes this node a cluster of its own: errs.Busy as long as its cluster works.
	RecoverCluster(ctx context.Context) error
	// Scrub compares what this node is the home of with all copies, and returns when that is done. Scrubbed says what the last such pass has found.
	Scrub(ctx context.Context) error
	Scrubbed() []Stat
	// Tokens returns the tokens with which nodes join, each with "expires=TIME" in Unix seconds, 0 for
	// never.
	Tokens(ctx context.Context) ([]string, error)
	// ChangeTokens takes "ttl SECONDS", which makes another token that expires, or "rotate [SECONDS]",
	// which makes all others and the certificates' authority invalid; without SECONDS it does not expire.
	// It returns the token that was made, as Tokens does.
	ChangeTokens(ctx context.Context, order string) (made string, err error)
}

// Member is a node, with its state according to gossip.
type Member struct {
	dsm.Member
	State string // alive, suspect, dead, left
}

// Stat is a named figure.
type Stat struct{ Name, Value string }

// Figure returns the Stat of a value as fmt prints it.
func Figure[V any](name string, v V) Stat { return Stat{name, fmt.Sprint(v)} }
