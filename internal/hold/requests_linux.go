package hold

// A request of the kernel that was not answered when the daemon was killed comes again. What it asks for may have happened:
// then the catalog has the result, under the number of the command. So before a command is proposed, its number is noted here,
// with the request that it is for.

// RequestKey is the key of a context's value that says for which request of the kernel something is done: its number, a uint64.
type RequestKey struct{}

const (
	requestSize = 24
	// MostRequests is how many of the last commands are remembered, and how many results the catalog keeps.
	MostRequests = 4096
	requestsSize = 2 * MostRequests * requestSize
)

// Request is a command that a request of the kernel has led to.
type Request struct {
	Unique uint64 // the kernel's number of its request
	Sum    uint64 // of what is commanded: a request may lead to several commands
}

// Note remembers the number of a command, before it is proposed.
func (m *Memory) Note(r Request, req uint64) {
	i := int(req%(2*MostRequests)) * requestSize / 8
	word(m.requests, i+2).Store(0)
	word(m.requests, i).Store(r.Unique)
	word(m.requests, i+1).Store(r.Sum)
	word(m.requests, i+2).Store(req)
}

// Noted returns the numbers of the last commands.
func (m *Memory) Noted() map[Request]uint64 {
	all := make(map[Request]uint64)
	for i := 0; i < requestsSize/8; i += requestSize / 8 {
		r, req := Request{word(m.requests, i).Load(), word(m.requests, i+1).Load()}, word(m.requests, i+2).Load()
		if req != 0 && req >= all[r] {
			all[r] = req
		}
	}
	return all
}
