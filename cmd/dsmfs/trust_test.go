package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestAnswerToEnrollIsLost: the connection breaks when the certificate is made, and the next one is refused. The node asks again. One whose node never answers gives up when its time is over.
func TestAnswerToEnrollIsLost(t *testing.T) {
	made, err := trust.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	first, _ := trust.Lasting(made)
	for _, loses := range []int32{0, 1, 3, 1 << 30} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asked, dialed atomic.Int32
		var last atomic.Pointer[net.Conn]
		member, err := transport.Listen(transport.Config{Self: 1, Listen: "127.0.0.1:0", Secure: true,
			OnEnroll: func(_ context.Context, from dsm.NodeID, req *wire.Enroll, _ bool) (*wire.Enrolled, error) {
				k := asked.Add(1)
				if k <= loses {
					(*last.Load()).Close()
				}
				if k > 4 {
					cancel()
				}
				a, err := trust.Parse(made.CA, made.CAKey)
				if err != nil {
					return nil, err
				}
				cert, err := a.Sign(trust.Identity{Cluster: 5, Node: from, Key: req.Key}, time.Now())
				return &wire.Enrolled{Cluster: 5, CA: made.CA, Cert: cert}, err
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer member.Close()
		member.SetCluster(5)
		member.SetTrust(&dsm.View{Cluster: 5, Trust: made, Members: []dsm.Member{{ID: 1, Addr: member.Addr(), Key: member.Key()}}})
		n := &node{cfg: nodeConfig{mountConfig: mountConfig{token: first.String()}}}
		n.net, err = transport.Listen(transport.Config{Self: 2, Listen: "127.0.0.1:0", Secure: true,
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dialed.Add(1) == 2 {
					return nil, errs.E(errs.Unavailable, "connect", "connection refused")
				}
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				last.Store(&c)
				return c, err
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer n.net.Close()
		err = n.enroll(ctx, member.Addr())
		if ends := loses <= 3; ends != (err == nil) || ends && asked.Load() != loses+1 {
			t.Errorf("%d answers are lost: asked %d times: %v", loses, asked.Load(), err)
		}
	}
}
