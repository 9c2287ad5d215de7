package catalog

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// FuzzCalls gives the only node of a cluster frames with requests of others. It goes on to serve, and its state agrees with itself.
func FuzzCalls(f *testing.F) {
	propose, err := command{Node: nodeB, Req: 1, Low: 1, Now: 5}.encode(addMemberOp{member(nodeB)})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []any{
		&wire.Join{Protocol: wire.JoinProtocol, Member: dsm.Member{ID: 5, Name: "five", Addr: "127.0.0.1:1", Budget: 1 << 20}}, &wire.Propose{Command: propose}, &wire.ReadIndex{From: 5, Term: 2},
		&wire.Recall{}, &wire.YieldLocks{Ino: 1, Term: 1}, &wire.Probe{Cluster: 1}, &wire.Leave{Node: 5}, &wire.GroupList{},
	} {
		b, err := wire.Append(nil, m, 5, false, 0)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := cluster(t, 1)[0]
		r := wire.NewReader(bytes.NewReader(b))
		for {
			frame, err := r.Read()
			if err != nil {
				break
			}
			ctx, cancel := context.WithTimeout(patient(t), 20*time.Millisecond) // what a request waits for is there, or never comes
			if _, handled := n.OnNow(frame.Msg); !handled {
				_, _ = n.OnCall(ctx, dsm.NodeID(frame.Req), frame.Msg)
			}
			cancel()
			frame.Release()
		}
		_, member := n.Current().Member(n.self.ID)
		if _, err := n.Getattr(patient(t), dsm.RootIno); err != nil && member {
			t.Errorf("it does not serve any more: %v", err)
		}
	})
}

// oneStream is a raft.StreamLayer to which one stream comes.
type oneStream struct {
	conns chan net.Conn
	once  sync.Once
}

func (s *oneStream) Accept() (net.Conn, error) {
	if c, ok := <-s.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (s *oneStream) Close() error   { s.once.Do(func() { close(s.conns) }); return nil }
func (s *oneStream) Addr() net.Addr { return &net.TCPAddr{} }
func (s *oneStream) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// FuzzRaftStream gives raft's transport, as the catalog uses it, the bytes of a stream.
func FuzzRaftStream(f *testing.F) {
	for kind := range byte(6) {
		f.Add([]byte{kind, 0x80})
		f.Add([]byte("\x00\x84\xacRPCHeader\x80\xa4Term\x01\xa7Entries\x91\x83\xa5Index\x01\xa4Term\x01\xa4Data\xa3abc\xb1LeaderCommitIndex\x01"))
	}
	f.Add([]byte("\x02\x82\xa4Term\x01\xa4Size\x03abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &oneStream{conns: make(chan net.Conn, 1)}
		trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: s, MaxPool: 4, Timeout: rpcTimeout, Logger: raftLog{slog.New(slog.DiscardHandler), "raft"}, MsgpackUseNewTimeFormat: true,
		})
		defer trans.Close()
		here, there := net.Pipe()
		s.conns <- there
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = io.Copy(io.Discard, here) // answers, until the transport closes the stream
		}()
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = here.Write(b)
			here.Close()
		}()
		for {
			select {
			case rpc := <-trans.Consumer():
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, rpc.Reader)
				}
				if req, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
					raise(newLogStore(), "self", req)
				}
				rpc.Respond(nil, errs.E(errs.Closed, "raft", ""))
				continue
			case <-written:
			}
			break
		}
		<-over
	})
}
