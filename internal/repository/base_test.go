package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// bitmapDisk is a disk with dirty bitmaps. As with QEMU, whoever runs the backups adds and removes them.
type bitmapDisk struct {
	data    []byte
	bitmaps map[string]extent.Set
	reads   atomic.Int64
}

func newBitmapDisk(size int) *bitmapDisk {
	d := &bitmapDisk{data: make([]byte, size), bitmaps: map[string]extent.Set{}}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(d.data)
	return d
}

func (d *bitmapDisk) ReadAt(_ context.Context, p []byte, offset int64) error {
	d.reads.Add(1)
	copy(p, d.data[offset:])
	return nil
}

// write fills a block with value, which every bitmap records.
func (d *bitmapDisk) write(block int64, value byte) {
	e := extent.Extent{Offset: block * mib, Length: mib}
	copy(d.data[e.Offset:e.End()], bytes.Repeat([]byte{value}, mib))
	for name, set := range d.bitmaps {
		d.bitmaps[name] = set.Union(extent.NewSet(e))
	}
}

// add adds an empty bitmap, and replaces one of the same name.
func (d *bitmapDisk) add(name string) { d.bitmaps[name] = extent.Set{} }

// request asks for a backup of what bitmap holds, which becomes change. Without a bitmap the changes are unknown.
func (d *bitmapDisk) request(bitmap, change string, at int64) Request {
	q := Request{Source: testSource, Time: time.Unix(at, 0), BlockBytes: mib}
	source := DiskSource{Name: "root", Bytes: int64(len(d.data)), Reader: d, Identity: "a", Change: change}
	if bitmap != "" {
		source.Changes = &Changes{Since: bitmap, Set: d.bitmaps[bitmap]}
	}
	q.Disks = []DiskSource{source}
	return q
}

func mustBackUp(tb testing.TB, r *Repository, q Request) *RestorePoint {
	tb.Helper()
	p, err := r.Backup(tb.Context(), q)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// firstWeek makes the restore points monday, tuesday and wednesday of a disk.
func firstWeek(t *testing.T, r *Repository, d *bitmapDisk) (points []*RestorePoint) {
	t.Helper()
	bitmap := ""
	for i, day := range []string{"monday", "tuesday", "wednesday"} {
		d.write(int64(i), byte(i+1))
		d.add(day)
		points = append(points, mustBackUp(t, r, d.request(bitmap, day, int64(i+1))))
		bitmap = day
	}
	for i, p := range points {
		if full := p.Disks[0].FullReason; (full == "") != (i > 0) {
			t.Fatalf("restore point %d is full: %q", i, full)
		}
	}
	return points
}

func TestBase_aChangeNamesOneRestorePoint(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	d := newBitmapDisk(4 * mib)
	points := firstWeek(t, r, d)
	d.add("monday")
	before := d.reads.Load()
	_, err := r.Backup(t.Context(), d.request("wednesday", "monday", 8))
	if !errors.Is(err, ErrChangeUsed) || !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), points[0].ID) || !strings.Contains(err.Error(), "monday") {
		t.Errorf("monday for the second time: %v, want an error that names %s", err, points[0].ID)
	}
	if n := d.reads.Load() - before; n > 0 {
		t.Errorf("the disk was read %d times before that was refused", n)
	}
	// Another disk, another history and the empty name are not affected.
	q := d.request("", "monday", 9)
	q.Disks[0].Name = "data"
	mustBackUp(t, r, q)
	q = d.request("", "monday", 10)
	q.Source.Path = "/other"
	mustBackUp(t, r, q)
	mustBackUp(t, r, d.request("", "", 11))
	mustBackUp(t, r, d.request("", "", 12))
}

// In the second week monday's bitmap starts again, and that day's backup fails. Tuesday must not start from the first week's
// monday.
func TestBase_autoTakesOnlyTheLatestRestorePoint(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	d := newBitmapDisk(8 * mib)
	points := firstWeek(t, r, d)
	d.write(5, 50) // on Sunday, before monday's bitmap is added again
	d.add("monday")
	d.write(6, 60)
	p := mustBackUp(t, r, d.request("monday", "tuesday of week 2", 9))
	if p.Disks[0].FullReason != FullOtherBase {
		t.Errorf("full: %q, want %q", p.Disks[0].FullReason, FullOtherBase)
	}
	same(t, r, p, d.data)

	// A request that names the right restore point gets it as parent.
	d.bitmaps["wednesday"] = extent.NewSet(extent.Extent{Offset: 5 * mib, Length: 3 * mib})
	q := d.request("wednesday", "thursday", 10)
	q.Parent = points[2].ID
	p = mustBackUp(t, r, q)
	if p.Disks[0].FullReason != "" || p.Disks[0].Parent != points[2].ID {
		t.Errorf("from an older restore point that was asked for: full %q, parent %s", p.Disks[0].FullReason, p.Disks[0].Parent)
	}
	same(t, r, p, d.data)
}

// A disk that the latest restore point does not have starts from the latest one that has it.
func TestBase_theLatestOfTheDiskCounts(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	d := newBitmapDisk(4 * mib)
	d.add("c1")
	first := mustBackUp(t, r, d.request("", "c1", 1))
	q := d.request("", "other", 2)
	q.Disks[0].Name = "data"
	mustBackUp(t, r, q)
	d.write(1, 1)
	p := mustBackUp(t, r, d.request("c1", "c2", 3))
	if p.Disks[0].FullReason != "" || p.Disks[0].Parent != first.ID {
		t.Errorf("full: %q from %s, want an incremental from %s", p.Disks[0].FullReason, p.Disks[0].Parent, first.ID)
	}
	same(t, r, p, d.data)
}

// If another machine has published something since this one connected, that is the latest restore point, and its name is taken.
func TestBase_whatOthersHavePublishedCounts(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(4 * mib)
	idle := []*Repository{s.opened(t, s.connect(t, "a", !cached)), s.opened(t, s.connect(t, "b", !cached)), s.opened(t, s.connect(t, "c", !cached))}
	points := firstWeek(t, s.opened(t, s.connect(t, "machine", !cached)), d)
	if _, err := idle[0].Backup(t.Context(), d.request("", "tuesday", 4)); !errors.Is(err, ErrChangeUsed) {
		t.Errorf("tuesday for the second time: %v", err)
	}
	if p := mustBackUp(t, idle[1], d.request("wednesday", "thursday", 5)); p.Disks[0].Parent != points[2].ID {
		t.Errorf("full: %q, parent %q", p.Disks[0].FullReason, p.Disks[0].Parent)
	}
	if p := mustBackUp(t, idle[2], d.request("wednesday", "friday", 6)); p.Disks[0].FullReason != FullOtherBase {
		t.Errorf("full: %q, parent %q", p.Disks[0].FullReason, p.Disks[0].Parent)
	}
}

// A name that two restore points have, from before names had to be unique, is no base.
func TestBase_aChangeOfTwoRestorePointsIsNone(t *testing.T) {
	t.Parallel()
	disk := func(change string) []Disk { return []Disk{{Name: "root", Change: change}} }
	points := []*RestorePoint{{ID: "1", Disks: disk("monday")}, {ID: "2", Disks: disk("tuesday")}, {ID: "3", Disks: disk("monday")}}
	d := &DiskSource{Name: "root", Changes: &Changes{Since: "monday"}}
	if !isAmbiguous(points, d) {
		t.Error("monday is that of one restore point")
	}
	if d.Changes.Since = "tuesday"; isAmbiguous(points, d) {
		t.Error("tuesday is that of two")
	}
}

// failWhenRead makes reads of blobs with this prefix fail after the first n.
func (s *site) failWhenRead(prefix string, n int64) (failure error) {
	failure = errors.New("the storage does not answer")
	var reads atomic.Int64
	fail := func(id blob.ID) error {
		if strings.HasPrefix(string(id), prefix) && reads.Add(1) > n {
			return fmt.Errorf("blob %s: %w", id, failure)
		}
		return nil
	}
	s.failing.Store(&fail)
	return failure
}

func TestBase_aStorageErrorIsNotAbsence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "machine", false)
	d := newBitmapDisk(4 * mib)
	firstWeek(t, s.opened(t, config), d)
	d.write(3, 3)
	for n := range int64(8) {
		r := s.opened(t, config)
		before := d.reads.Load()
		failure := s.failWhenRead("q", n)
		p, err := r.Backup(t.Context(), d.request("wednesday", fmt.Sprint("thursday ", n), 4))
		s.failing.Store(nil)
		if err == nil {
			if p.Disks[0].FullReason != "" {
				t.Fatalf("with %d reads that worked the disk was read as a whole: %q", n, p.Disks[0].FullReason)
			}
			if n == 0 {
				t.Fatal("nothing failed")
			}
			return
		}
		if !errors.Is(err, failure) || errors.Is(err, errclass.Corrupt) {
			t.Errorf("after %d reads: %v, want the storage's error", n, err)
		}
		if read := d.reads.Load() - before; read > 1 {
			t.Errorf("after %d reads: the disk was read %d times", n, read)
		}
	}
}

// If the latest restore point is unknown because of damage, everything is read, and the reason says so.
func TestBase_damageOfTheLatestIsToldAsDamage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "machine", false)
	d := newBitmapDisk(4 * mib)
	r := s.opened(t, config)
	points := firstWeek(t, r, d)
	dropSummary(t, r, points[2])
	damageDescription(t, s, r, points[2])
	d.write(3, 3)
	p := mustBackUp(t, r, d.request("tuesday", "thursday", 4))
	if p.Disks[0].FullReason != FullParentDamaged {
		t.Errorf("full: %q, want %q", p.Disks[0].FullReason, FullParentDamaged)
	}
	same(t, r, p, d.data)
	// The damage is now older than the latest restore point, and no longer matters.
	d.add("thursday")
	d.write(1, 7)
	p = mustBackUp(t, r, d.request("thursday", "friday", 5))
	if p.Disks[0].FullReason != "" {
		t.Errorf("full: %q, want an incremental", p.Disks[0].FullReason)
	}
	same(t, r, p, d.data)
}

// dropSummary removes the summary from a restore point's manifest, so that its directory must be read, as with restore points of
// earlier versions.
func dropSummary(t *testing.T, r *Repository, p *RestorePoint) {
	t.Helper()
	found, err := r.conn.FindPoint(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	ctx, w, err := r.conn.Kopia.NewDirectWriter(t.Context(), repo.WriteSessionOptions{Purpose: "test"})
	if err != nil {
		t.Fatal(err)
	}
	m := *found.Manifest
	m.ID, m.Description = "", ""
	_, err = snapshot.SaveSnapshot(ctx, w, &m)
	err = errors.Join(err, engine.RemoveManifest(ctx, w, found.Manifest.ID), w.Flush(ctx), w.Close(ctx), r.conn.Kopia.Refresh(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
}

// damageDescription flips a bit in the directory of a restore point.
func damageDescription(t *testing.T, s *site, r *Repository, p *RestorePoint) {
	t.Helper()
	found, err := r.conn.FindPoint(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	id, _, ok := found.Manifest.RootObjectID().ContentID()
	if !ok {
		t.Fatalf("%s is no content", found.Manifest.RootObjectID())
	}
	info, err := r.conn.Kopia.ContentReader().ContentInfo(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.location().Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	data, err := storage.ReadBlob(t.Context(), st, info.PackBlobID)
	if err != nil {
		t.Fatal(err)
	}
	data[info.PackOffset+info.PackedLength/2] ^= 1
	if err := errors.Join(st.PutBlob(t.Context(), info.PackBlobID, storage.Bytes(data), blob.PutOptions{}), st.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// A clock that was ahead once does not hide what is made afterwards, whatever happens to the restore points in between.
func TestBase_aClockThatWasAhead(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	d := newBitmapDisk(4 * mib)
	// This is what --track does: the only bitmap is that of the restore point that was made last.
	last := ""
	backUp := func(at int64) *RestorePoint {
		t.Helper()
		change := fmt.Sprint("c", at)
		changed := d.request(last, change, at)
		d.bitmaps = map[string]extent.Set{change: {}}
		last = change
		p := mustBackUp(t, r, changed)
		same(t, r, p, d.data)
		return p
	}
	backUp(1)
	ahead := backUp(1000)
	var points []*RestorePoint
	for at := range int64(4) {
		d.write(at, byte(at))
		p := backUp(2 + at)
		points = append(points, p)
		if p.Disks[0].FullReason != "" || p.After.Before(ahead.Time) || p.Time.Unix() != 2+at {
			t.Errorf("restore point %d is full (%q), at %s after %s", at, p.Disks[0].FullReason, p.Time, p.After)
		}
	}
	if err := r.Delete(t.Context(), points[0].ID); err != nil {
		t.Fatal(err)
	}
	if p := backUp(7); p.Disks[0].FullReason != "" {
		t.Errorf("after the first one that was made with the right clock has gone: full %q", p.Disks[0].FullReason)
	}
	// A full backup ends this as well.
	last = ""
	backUp(8)
	if p := backUp(9); p.Disks[0].FullReason != "" {
		t.Errorf("after a full one: %q", p.Disks[0].FullReason)
	}
	// Once that time has come, restore points no longer record it.
	if p := backUp(1001); p.Disks[0].FullReason != "" || !p.After.IsZero() {
		t.Errorf("full: %q, after %s", p.Disks[0].FullReason, p.After)
	}
	listed, err := r.List(t.Context(), &testSource)
	if err != nil {
		t.Fatal(err)
	}
	SortByMaking(listed)
	if n := len(listed); listed[n-1].Time.Unix() != 1001 || listed[n-2].Time.Unix() != 9 || listed[0].Time.Unix() != 1 {
		t.Errorf("the order of making: %v", listed)
	}
}
