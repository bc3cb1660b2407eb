package mover

import (
	"bytes"
	"testing"

	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// pullDisk stores a volume that an export server serves, through connections that are cut.
func pullDisk(t *testing.T, r *repository.Repository, b PulledBackup, v *exporttest.Volume) *repository.RestorePoint {
	t.Helper()
	s := exportsite.Open(t, v)
	client := exportsite.NewClient(t, exportsite.Cut(s.Options(), 3, 2<<20, 10))
	b.Machine = "shop/web"
	b.Volumes = []endpoint.Volume{{
		Name: "root", Map: s.URL("/exports/root/map"), Data: s.URL("/exports/root/data"), Bytes: v.Description.Bytes, Incremental: v.Description.Incremental,
	}}
	q := BackupRequest{History: r.Source("", "", HistoryPath("web"))}
	if err := b.AddTo(t.Context(), r, client, &q); err != nil {
		t.Fatal(err)
	}
	point, err := Backup(t.Context(), r, q)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := Stream(t.Context(), r, StreamRequest{Disk: point.Disks[0], To: &got}); err != nil || !bytes.Equal(got.Bytes(), v.Content) {
		verdict.JudgeErrorf(t, err == nil, "restore point %s has other bytes: %v", point.ID, err)
	}
	return point
}

// changed returns an incremental of a volume in which some blocks differ.
func changed(v *exporttest.Volume, seed uint64) *exporttest.Volume {
	next := exporttest.NewVolume("root", v.Description.Bytes, true, seed)
	for i := range next.Dirty {
		next.Dirty[i] = i%16 == int(seed%16)
		if offset := int64(i) * exporttest.BlockBytes; !next.Dirty[i] {
			copy(next.Content[offset:], v.Content[offset:min(offset+exporttest.BlockBytes, v.Description.Bytes)])
		}
	}
	return next
}

func TestPulledBackup_incrementalNeedsItsBase(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	first := exporttest.NewVolume("root", 16<<20+512, false, 1)
	second := changed(first, 2)
	third := changed(second, 3)
	uid := func(n string) string { return "5d0c0d5e-0000-4000-8000-00000000000" + n }

	one := pullDisk(t, r, PulledBackup{UID: uid("1"), Checkpoint: "c1"}, first)
	if one.ID != "5d0c0d5e000040008000000000000001" || one.Disks[0].FullReason != repository.FullNoParent {
		t.Errorf("full: %s, %q", one.ID, one.Disks[0].FullReason)
	}
	two := pullDisk(t, r, PulledBackup{UID: uid("2"), Checkpoint: "c2", BaseCheckpoint: "c1", BaseUID: uid("1")}, second)
	if d := two.Disks[0]; d.FullReason != "" || d.Stats.ReadBytes > 6<<20 {
		t.Errorf("incremental: %q, %d bytes read", d.FullReason, d.Stats.ReadBytes)
	}
	// The same backup once more is the same restore point.
	if again := pullDisk(t, r, PulledBackup{UID: uid("2"), Checkpoint: "c2", BaseCheckpoint: "c1", BaseUID: uid("1")}, second); again.ID != two.ID || !again.Time.Equal(two.Time) {
		t.Errorf("again: %s", again.ID)
	}
	// A checkpoint of the same name of another backup is another checkpoint: everything is read.
	three := pullDisk(t, r, PulledBackup{UID: uid("3"), Checkpoint: "c3", BaseCheckpoint: "c2", BaseUID: uid("9")}, third)
	if d := three.Disks[0]; d.FullReason != repository.FullOtherBase {
		t.Errorf("with a base that is not here: %q", d.FullReason)
	}
	// The base need not be the latest restore point.
	four := pullDisk(t, r, PulledBackup{UID: uid("4"), Checkpoint: "c4", BaseCheckpoint: "c2", BaseUID: uid("2")}, changed(second, 5))
	if d := four.Disks[0]; d.FullReason != "" {
		t.Errorf("with an older base: %q", d.FullReason)
	}
	// Without a tracker there is no checkpoint.
	alone := pullDisk(t, r, PulledBackup{UID: "not a UID of Kubernetes"}, exporttest.NewVolume("root", 1<<20, false, 8))
	if len(alone.ID) != 32 || alone.Disks[0].Change != "" {
		t.Errorf("alone: %s, %q", alone.ID, alone.Disks[0].Change)
	}
}
