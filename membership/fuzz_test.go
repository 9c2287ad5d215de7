package membership

import (
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// FuzzGossip gives a node a datagram and a byte stream of a stranger, and then asks it for what it believes.
func FuzzGossip(f *testing.F) {
	const node = "\xa4Node\xb00000000000000007"
	meta, err := encodeMeta("seven", "10.0.0.7:7000")
	if err != nil {
		f.Fatal(err)
	}
	alive := "\x04\x86\xabIncarnation\x01" + node + "\xa4Addr\xa4\x0a\x00\x00\x07\xa4Port\xcd\x1b\x58\xa4Meta" + string([]byte{0xc4, byte(len(meta))}) + string(meta) + "\xa3Vsn\xa6\x01\x05\x05\x00\x00\x00"
	suspect := "\x03\x83\xabIncarnation\x01" + node + "\xa4From\xb00000000000000002"
	for _, packet := range []string{
		"\x00\x82\xa5SeqNo\x01" + node,                                           // ping
		"\x01\x84\xa5SeqNo\x01\xa6Target\xa4\x0a\x00\x00\x01\xa4Port\x01" + node, // indirect ping
		"\x02\x82\xa5SeqNo\x01\xa7Payload\xc0",                                   // ack
		alive, suspect, "\x05" + suspect[1:],                                     // dead
		"\x07\x02\x00" + string(rune(len(suspect))) + "\x00\x02" + suspect + "\x00", // several
		"\x08L\x00\x00\x00\x00\x00\x00\x00\x07",                                     // goodbye
		"\x09\x82\xa4Algo\x00\xa3Buf\xa3\x0b\x0c\x00",                               // compressed
		"\x0b\x81\xa5SeqNo\x01", "\x0c\x00\x00\x00\x00" + suspect,                   // nack; with a checksum
	} {
		f.Add([]byte(packet), []byte(packet))
	}
	f.Add([]byte(alive), []byte("\x06\x83\xa5Nodes\x01\xacUserStateLen\x00\xa4Join\xc3\x86"+alive[2:]+"\xa5State\x00"))
	f.Fuzz(func(t *testing.T, datagram, stream []byte) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			port, stranger := n.listen(1), n.listen(9)
			m, err := Start(Config{Self: 1, Name: "node1", Net: port, Log: slog.New(slog.DiscardHandler), Seeds: func() []string { return nil }, OnChange: func(Peer, State) {}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				m.Close()
				stranger.Close()
				time.Sleep(time.Minute) // of the bubble's time
			}()
			_ = stranger.WriteTo(datagram, port.addr)
			synctest.Wait()
			if conn, err := stranger.Dial(port.addr, time.Second); err == nil {
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				_, _ = conn.Write(stream)
				conn.Close()
			}
			synctest.Wait()
			for _, p := range m.Peers() {
				if p.ID == 1 || p.ID == dsm.NodeID(0) && p.Name == "" && p.Addr == "" {
					t.Errorf("it knows %+v", p)
				}
				if _, err := encodeMeta(p.Name, p.Addr); err != nil {
					t.Errorf("it knows %+v: %v", p, err)
				}
			}
		})
	})
}
