package repository

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// A restore takes no more requests on a connection with a cache than on one without, and fewer than there are blocks. The same
// holds for a verification.
func TestCost_restoreReadsRunsPastTheCache(t *testing.T) {
	t.Parallel()
	const blocks = 160
	s := newSite(t)
	disk := &memory{data: make([]byte, blocks*256*kib)}
	disk.write(rand.New(rand.NewPCG(1, 2)), extent.Extent{Length: int64(len(disk.data))}, false)
	p, err := s.opened(t, s.connect(t, "writer", !cached)).Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	gets, verifying := map[bool]int64{}, map[bool]int64{}
	for name, cache := range map[string]bool{"with": cached, "without": !cached} {
		config := s.connect(t, name, cache)
		took := s.costOf(t, func() error {
			r, err := s.open(t.Context(), config)
			if err != nil {
				return err
			}
			target := &restoredDisk{data: make([]byte, len(disk.data))}
			image, err := r.Image(t.Context(), p.Disks[0])
			if err == nil {
				err = image.Restore(t.Context(), target, RestoreOptions{})
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(target.data, disk.data) {
				verdict.Errorf(t, "other bytes")
			}
			return r.Close(t.Context())
		})
		r := s.opened(t, config)
		verified := s.costOf(t, func() error {
			report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
			if err == nil && (report.Damaged() || report.Contents < blocks) {
				t.Errorf("%+v", report)
			}
			return err
		})
		t.Logf("%s a cache: %s; to verify %s", name, took, verified)
		gets[cache], verifying[cache] = took.gets, verified.gets
	}
	if verifying[cached] != verifying[!cached] || verifying[!cached] > blocks/2 { // It verifies the storage, not the cache.
		t.Errorf("verifying: %d GETs with a cache, %d without, for %d blocks", verifying[cached], verifying[!cached], blocks)
	}
	if gets[cached] > gets[!cached]+10 || gets[!cached] > blocks/2 { // What is cached is fetched as whole blobs.
		t.Errorf("%d GETs with a cache, %d without, for %d blocks", gets[cached], gets[!cached], blocks)
	}
}

// restoredDisk is a target in memory that reads as zeroes at first.
type restoredDisk struct{ data []byte }

func (d *restoredDisk) WriteAt(_ context.Context, p []byte, offset int64) error {
	copy(d.data[offset:], p)
	return nil
}

func (*restoredDisk) Zero(context.Context, extent.Extent) error { return nil }
func (*restoredDisk) Sync(context.Context) error                { return nil }
