package transport

import "github.com/dsmfs/dsmfs/internal/lockrank"

// crowd counts the connections that have not said yet who they are. Each costs memory, a goroutine
// and, with TLS, a signature, and anybody can open them; HelloTimeout bounds how long they last.
type crowd struct {
	mu struct {
		lockrank.Mutex
		all   int
		hosts map[string]int
	}
}

const (
	maxStrangers        = 1024
	maxStrangersOfAHost = 128
)

func (c *crowd) init() {
	c.mu.Init("transport.crowd")
	c.mu.hosts = make(map[string]int)
}

// enter reports whether there is room for one more of the host.
func (c *crowd) enter(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.all >= maxStrangers || c.mu.hosts[host] >= maxStrangersOfAHost {
		return false
	}
	c.mu.all++
	c.mu.hosts[host]++
	return true
}

// leave undoes enter.
func (c *crowd) leave(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.all--
	if c.mu.hosts[host]--; c.mu.hosts[host] == 0 {
		delete(c.mu.hosts, host)
	}
}
