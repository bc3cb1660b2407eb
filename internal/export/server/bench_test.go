package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
)

// solid is a full backup of a disk that has the same megabyte all over, so that reading costs nothing.
type solid struct{ size int64 }

var (
	megabyte         = make([]byte, export.MaxChunkBytes)
	megabyteChecksum = export.Checksum(megabyte)
)

func (v solid) Info() export.Info {
	return export.Info{Name: "solid", Bytes: v.size, PointInTime: "solid-1"}
}

func (v solid) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	report(export.Region{Extent: e, Kind: export.Data})
	return nil
}

func (v solid) Read(ctx context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	for at := e.Offset; at < e.End() && ctx.Err() == nil; at += export.MaxChunkBytes {
		if err := sink(export.Chunk{Extent: extent.Extent{Offset: at, Length: export.MaxChunkBytes}, Data: megabyte, Checksum: megabyteChecksum}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

const benchBytes = 256 << 20

// BenchmarkData reads a disk of 256 MiB over as many connections.
func BenchmarkData(b *testing.B) {
	for _, connections := range []int{1, 4} {
		for _, http2 := range []bool{false, true} {
			b.Run(fmt.Sprintf("connections=%d/http2=%t", connections, http2), func(b *testing.B) {
				s := openVolumes(b, server.Config{}, solid{size: benchBytes})
				clients := make([]*http.Client, connections)
				for i := range clients {
					clients[i] = s.newClient(b, http2)
				}
				part := int64(benchBytes / connections)
				b.SetBytes(benchBytes)
				b.ReportAllocs()
				for b.Loop() {
					var group sync.WaitGroup
					for i, client := range clients {
						group.Go(func() {
							discard(b, client, s.url+"/exports/solid/data", part, "Range", fmt.Sprintf("bytes=%d-%d", int64(i)*part, int64(i+1)*part-1))
						})
					}
					group.Wait()
				}
			})
		}
	}
}

// BenchmarkStream reads and checks a stream: of 256 MiB, and of 64 KiB changes that are scattered over a disk.
func BenchmarkStream(b *testing.B) {
	for name, volume := range map[string]export.Volume{"solid": solid{size: benchBytes}, "scattered": newScattered(benchBytes / (64 << 10) * scatterBytes)} {
		b.Run(name, func(b *testing.B) {
			s := openVolumes(b, server.Config{}, volume)
			b.SetBytes(benchBytes)
			b.ReportAllocs()
			for b.Loop() {
				response := request(b, s.client, s.url+"/exports/stream")
				d, err := stream.NewDecoder(response.Body)
				for err == nil {
					_, err = d.Next()
				}
				if !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				response.Body.Close()
			}
		})
	}
}

// BenchmarkMap reads a page of 10,000 regions, and one of upstream's 512, in the middle of a map of 1 TiB.
func BenchmarkMap(b *testing.B) {
	for name, query := range map[string]string{"regions": "start=549755813888&limit=83886080000", "extents": "offset=549755813888"} {
		b.Run(name, func(b *testing.B) {
			s := openVolumes(b, server.Config{}, newScattered(1<<40))
			b.ReportAllocs()
			for b.Loop() {
				discard(b, s.client, s.url+"/exports/huge/map?"+query, -1)
			}
		})
	}
}

func request(b *testing.B, client *http.Client, url string, header ...string) *http.Response {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	return response
}

var readBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func discard(b *testing.B, client *http.Client, url string, want int64, header ...string) {
	b.Helper()
	b.Helper()
	response := request(b, client, url, header...)
	defer response.Body.Close()
	buffer := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buffer)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, *buffer)
	if err != nil || response.StatusCode >= 300 || (want >= 0 && n != want) {
		b.Errorf("%d: %d bytes, %v", response.StatusCode, n, err)
	}
}
