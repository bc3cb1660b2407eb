package tunnel

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
)

const benchBytes = 256 << 20

// benchVolume is data alone, and costs nothing to read: all its bytes are the same, so that the checksums are known.
type benchVolume struct {
	*exporttest.Volume
	sums map[int64]uint32
}

func newBenchVolume() *benchVolume {
	v := &benchVolume{Volume: &exporttest.Volume{Description: export.Info{Name: "disk", Bytes: benchBytes}}, sums: map[int64]uint32{}}
	v.Content = bytes.Repeat([]byte{1}, benchBytes)
	for n := int64(planAlign); n <= export.MaxChunkBytes; n += planAlign {
		v.sums[n] = export.Checksum(v.Content[:n])
	}
	return v
}

func (v *benchVolume) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	report(export.Region{Extent: e, Kind: export.Data})
	return nil
}

func (v *benchVolume) Read(_ context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	for at := e.Offset; at < e.End(); {
		part := extent.Extent{Offset: at, Length: min(export.MaxChunkBytes, e.End()-at)}
		if err := sink(export.Chunk{Extent: part, Data: v.Content[part.Offset:part.End()], Checksum: v.sums[part.Length]}); err != nil {
			return err
		}
		at = part.End()
	}
	return nil
}

// cpuSeconds returns the processor time of this process.
func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func reportCPU(b *testing.B, before float64, bytes int64) {
	b.Helper()
	b.ReportMetric((cpuSeconds(b)-before)/(float64(b.N)*float64(bytes)/(1<<30)), "cpu-s/GiB")
}

// BenchmarkRead reads a volume of 256 MiB over loopback: as a whole, or each of four readers a quarter.
func BenchmarkRead(b *testing.B) {
	r := newRig(b, nil)
	launch(b, r.config(), newBenchVolume())
	v := r.open(b, "disk")
	for _, readers := range []int64{1, 4} {
		b.Run(fmt.Sprintf("%d readers", readers), func(b *testing.B) {
			b.SetBytes(benchBytes)
			b.ReportAllocs()
			before := cpuSeconds(b)
			for b.Loop() {
				var all sync.WaitGroup
				for i := range readers {
					all.Go(func() {
						e := extent.Extent{Offset: i * benchBytes / readers, Length: benchBytes / readers}
						if err := v.Read(context.Background(), e, export.Everything, func(export.Chunk) error { return nil }); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
			}
			reportCPU(b, before, benchBytes)
		})
	}
}

// BenchmarkRawTLS copies the same bytes over TLS connections, without a protocol and without a checksum.
func BenchmarkRawTLS(b *testing.B) {
	ca := newAuthority(b)
	content := newBenchVolume().Content
	for _, connections := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("%d connections", connections), func(b *testing.B) {
			part := content[:benchBytes/connections]
			from, to := rawPairs(b, ca, connections)
			b.SetBytes(benchBytes)
			before := cpuSeconds(b)
			for b.Loop() {
				var all sync.WaitGroup
				for i := range from {
					all.Go(func() {
						for rest := part; len(rest) > 0; rest = rest[min(len(rest), 1<<20):] {
							if _, err := from[i].Write(rest[:min(len(rest), 1<<20)]); err != nil {
								b.Error(err)
							}
						}
					})
					all.Go(func() {
						if _, err := io.CopyBuffer(onlyWriter{}, io.LimitReader(to[i], int64(len(part))), make([]byte, maxPieceBytes)); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
			}
			reportCPU(b, before, benchBytes)
		})
	}
}

type onlyWriter struct{}

func (onlyWriter) Write(p []byte) (int, error) { return len(p), nil }

func rawPairs(b *testing.B, ca *authority, n int) (from, to []*tls.Conn) {
	b.Helper()
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	pool, _ := ca.pool()
	for range n {
		c, err := new(net.Dialer).DialContext(b.Context(), "tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		server := tls.Server(s, ca.serverConfig(b, testName))
		client := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: testName, MinVersion: tls.VersionTLS13})
		done := make(chan error, 1)
		go func() { done <- server.Handshake() }()
		if err := client.Handshake(); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close(); s.Close() })
		from, to = append(from, client), append(to, server)
	}
	return from, to
}
