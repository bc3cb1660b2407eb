package collection

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

const patternBytes = 1 << 20

// pattern is a disk whose blocks are computed: a third are zeroes, and no two others are alike.
type pattern struct{ info export.Info }

func (p pattern) Info() export.Info { return p.info }

func (p pattern) kind(block int64) export.Kind {
	if block%3 == 2 {
		return export.Zero
	}
	return export.Data
}

// fill writes the content of a block.
func (p pattern) fill(b []byte, block int64) {
	clear(b)
	if p.kind(block) == export.Data {
		_, _ = rand.NewChaCha8([32]byte{byte(block), byte(block >> 8), byte(block >> 16), 1}).Read(b)
	}
}

func (p pattern) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	var region export.Region
	for offset := e.Offset; offset < e.End(); {
		end := min((offset/patternBytes+1)*patternBytes, e.End())
		switch kind := p.kind(offset / patternBytes); {
		case region.Length > 0 && region.Kind == kind:
			region.Length += end - offset
		case region.Length > 0 && !report(region):
			return nil
		default:
			region = export.Region{Extent: extent.Extent{Offset: offset, Length: end - offset}, Kind: kind}
		}
		offset = end
	}
	report(region)
	return nil
}

func (p pattern) Read(ctx context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	buf := make([]byte, patternBytes)
	for offset := e.Offset; offset < e.End(); {
		block, end := offset/patternBytes, min((offset/patternBytes+1)*patternBytes, e.End())
		c := export.Chunk{Extent: extent.Extent{Offset: offset, Length: end - offset}}
		if p.kind(block) == export.Data {
			p.fill(buf, block)
			c.Data = buf[offset-block*patternBytes:][:c.Length]
			c.Checksum = export.Checksum(c.Data)
		}
		if err := sink(c); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errclass.Errorf(errclass.Transient, "%w", ctx.Err())
		}
		offset = end
	}
	return nil
}

// A pull of 2 GiB while the server dies again and again, connections are reset at random offsets, and the puller is
// interrupted as well: the bytes are right, and nothing is fetched twice but what was in flight.
func TestCollect_chaos(t *testing.T) {
	if testing.Short() {
		t.Skip("2 GiB")
	}
	const size = 2 << 30
	v := pattern{info: export.Info{Name: "root", Bytes: size, PointInTime: "now"}}
	s := exportsite.Open(t, v)
	o := exportsite.Cut(s.Options(), 7, 200<<20, 1<<30)
	q := Request{Backup: describe(s, "u1", "c1", v), Client: exportsite.NewClient(t, o), Directory: t.TempDir(), Format: disk.Raw}

	stop := make(chan struct{})
	var killer sync.WaitGroup
	kills := 0
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(700 * time.Millisecond):
				s.Kill()
				kills++
				time.Sleep(50 * time.Millisecond)
				s.Start()
			}
		}
	})
	interrupted(t, q, "root", 300<<20)
	r := mustCollect(t, q).Volumes[0]
	close(stop)
	killer.Wait()

	t.Logf("%d kills, %d attempts, resumed at %d, %d of %d bytes of use", kills, r.Stats.Attempts, r.ResumedBytes, r.Stats.UsefulBytes, r.Stats.ReceivedBytes)
	if kills < 2 || r.Stats.Attempts < 4 {
		t.Errorf("only %d kills and %d attempts", kills, r.Stats.Attempts)
	}
	if waste, most := r.Stats.ReceivedBytes-r.Stats.UsefulBytes, int64(r.Stats.Attempts)*(export.MaxChunkBytes+64<<10)+1<<20; waste > most {
		t.Errorf("%d bytes were fetched for nothing in %d attempts", waste, r.Stats.Attempts)
	}
	if fetched, left := r.Stats.UsefulBytes, r.DataBytes-r.ResumedBytes*2/3; fetched > left+2*patternBytes {
		t.Errorf("%d bytes were fetched after the interruption, and %d were missing", fetched, left)
	}
	wantPattern(t, filepath.Join(q.Directory, "root.raw"), v)
}

func wantPattern(t *testing.T, path string, v pattern) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // it is only read
	got, want := make([]byte, patternBytes), make([]byte, patternBytes)
	for block := range v.info.Bytes / patternBytes {
		v.fill(want, block)
		if _, err := f.ReadAt(got, block*patternBytes); err != nil || !bytes.Equal(got, want) {
			verdict.Fatalf(t, "other bytes in block %d: %v", block, err)
		}
	}
}
