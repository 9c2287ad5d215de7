package transport

import (
	"log/slog"
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// refusals logs refused connections, for each remote host at most once a minute, so that a port
// scanner cannot fill the log.
type refusals struct {
	mu struct {
		lockrank.Mutex
		last map[string]time.Time
	}
}

const (
	refusalPause = time.Minute
	refusalHosts = 1024 // remembered at most
)

func (r *refusals) init() { r.mu.Init("transport.refusals") }

func (r *refusals) log(log *slog.Logger, remote net.Addr, why error) {
	if r.due(hostOf(remote), time.Now()) {
		log.Warn("connection refused", "remote", remote, "err", why)
	}
}

func hostOf(remote net.Addr) string {
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		return remote.String()
	}
	return host
}

// due reports whether no refusal of the host was logged within the last minute.
func (r *refusals) due(host string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.mu.last[host]; ok && now.Sub(last) < refusalPause {
		return false
	}
	if r.mu.last == nil || len(r.mu.last) >= refusalHosts {
		r.mu.last = make(map[string]time.Time)
	}
	r.mu.last[host] = now
	return true
}
