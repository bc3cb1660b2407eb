package mover

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

// noise returns bytes that do not compress and differ from seed to seed.
func noise(seed byte, bytes int) []byte {
	out := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(out) // it never fails
	return out
}

func TestBackup_reportsItsPhasesAndMakesARestorePoint(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	var phases []Phase
	var last Progress
	point, err := Backup(t.Context(), r, BackupRequest{
		History: r.Source("", "", "/web"),
		Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<20))}, {Name: "data", Location: writeFile(t, noise(2, 3<<20))}},
		Progress: func(p Progress) {
			if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
				phases = append(phases, p.Phase)
			}
			last = p
		},
		Warn: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(point.Disks) != 2 || point.Disks[0].Bytes != 1<<20 || point.Disks[1].Bytes != 3<<20 || point.Disks[0].FullReason != repository.FullNoParent {
		t.Errorf("%+v", point)
	}
	if len(phases) != 2 || phases[0] != PhaseOpening || phases[1] != PhaseStoring {
		t.Errorf("phases %v", phases)
	}
	if last.ProcessedBytes != 4<<20 || last.TotalBytes != 4<<20 || last.Backup == nil || last.Backup.ChangedBytes != 4<<20 {
		t.Errorf("%+v", last)
	}
	if points, err := r.List(t.Context(), nil); err != nil || len(points) != 1 || points[0].ID != point.ID {
		t.Errorf("%v: %v", points, err)
	}
}

func TestBackup_storesTheDefinition(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	const want = `{"vm": "web"}`
	point, err := Backup(t.Context(), r, BackupRequest{
		History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<16))}},
		Definition: []byte(want),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Definition(t.Context(), point); err != nil || string(got) != want {
		verdict.JudgeErrorf(t, err == nil, "%s, %v", got, err)
	}
}

func TestBackup_makesNothingIfASourceFails(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	q := BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{
		{Name: "root", Location: writeFile(t, noise(1, 1<<16))},
		{Name: "data", Location: writeFile(t, noise(1, 1<<16)), Options: disk.SourceOptions{Format: disk.QCOW2}},
	}}
	var opening *OpenError
	if _, err := Backup(t.Context(), r, q); !errors.As(err, &opening) || opening.Source != "data" || !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Sources = q.Sources[:1]
	if _, err := Backup(ctx, r, q); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if points, err := r.List(t.Context(), nil); err != nil || len(points) != 0 {
		t.Errorf("%v: %v", points, err)
	}
}

// A source that the caller opens can tell what has changed, and the caller may know better which disk it is.
func TestBackup_followsTheCallersOwnSource(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	first, second := NewCheckpoint(), NewCheckpoint()
	d := &memoryDisk{content: noise(1, 4<<20), identity: "of the disk"}
	q := BackupRequest{
		History: r.Source("", "", "/web"),
		Sources: []Source{{Name: "root", Open: d.open, Checkpoint: first, Identity: "claim:1"}},
	}
	if p, err := Backup(t.Context(), r, q); err != nil || p.Disks[0].Identity != "claim:1" || p.Disks[0].Change != first || !d.closed.Load() {
		t.Fatalf("%+v: %v", p, err)
	}
	changes := extent.NewSet(extent.Extent{Offset: 1 << 20, Length: 1})
	copy(d.content[1<<20:], "x")
	next := &memoryDisk{content: d.content, identity: "of another mount", changes: &changes}
	q.Sources[0].Open, q.Sources[0].Checkpoint, q.Sources[0].Exclusive = next.open, second, true
	q.Sources[0].Options.Bitmap = first
	p, err := Backup(t.Context(), r, q)
	if err != nil || p.Disks[0].FullReason != "" || p.Disks[0].Base != first || next.read.Load() != repository.DefaultBlockBytes {
		t.Errorf("%+v, %d bytes read: %v", p, next.read.Load(), err)
	}
}

// A check sees the disk when all of it was read, and one that fails leaves no restore point.
func TestBackup_checksTheSource(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d := &memoryDisk{content: noise(1, 4<<20), identity: "of the disk"}
	wrong := errors.New("wrong")
	q := BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{
		Name: "root", Open: d.open, Check: func(context.Context, disk.Source) error {
			if d.read.Load() < 4<<20 || d.closed.Load() {
				t.Errorf("checked after %d bytes", d.read.Load())
			}
			return wrong
		},
	}}}
	if _, err := Backup(t.Context(), r, q); !errors.Is(err, wrong) {
		t.Error(err)
	}
	if points, err := r.List(t.Context(), nil); err != nil || len(points) != 0 {
		t.Errorf("%v: %v", points, err)
	}
}

func TestBackup_returnsTheRestorePointWithItsID(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d := &memoryDisk{content: noise(1, 1<<20)}
	q := BackupRequest{ID: "0123456789abcdef0123456789abcdef", History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}}}
	made, err := Backup(t.Context(), r, q)
	if err != nil || made.ID != q.ID {
		t.Fatalf("%+v: %v", made, err)
	}
	q.Sources[0].Open = func(context.Context) (disk.Source, error) {
		t.Error("it opens the source")
		return nil, errors.New("gone")
	}
	if again, err := Backup(t.Context(), r, q); err != nil || again.ID != q.ID || again.Snapshot != made.Snapshot {
		t.Errorf("%+v: %v", again, err)
	}
	q.History = r.Source("", "", "/db")
	if _, err := Backup(t.Context(), r, q); !errors.Is(err, errclass.Conflict) {
		t.Errorf("of another history: %v", err)
	}
	q.ID = "not hexadecimal"
	q.Sources[0].Open = d.open
	if _, err := Backup(t.Context(), r, q); !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
	if points, err := r.List(t.Context(), nil); err != nil || len(points) != 1 {
		t.Errorf("%v: %v", points, err)
	}
}
