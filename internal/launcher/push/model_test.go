package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"testing"
	"testing/synctest"

	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/backupjob/backupjobtest"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/manifest"
	"github.com/varvebackup/varve/test/verdict"
)

// modelBase is what a tracker records about its last backup, with the claim that has the files.
type modelBase struct {
	checkpoint, uid, directory, digest string
	claim                              int
}

// modelBackup is a backup that ended DONE, and what the disk held then.
type modelBackup struct {
	claim     int
	directory string
	content   map[byte]byte
}

// copyingGuest is a fake of QEMU's copy: a disk of a few blocks, one bitmap per checkpoint, and files that list blocks.
type copyingGuest struct {
	*backupjobtest.Guest
	disk    map[byte]byte
	bitmaps map[string]map[byte]bool
	// during runs while data is copied. Its error becomes the job's error.
	during func() error
}

func (g *copyingGuest) write(block, value byte) {
	g.disk[block] = value
	for _, dirty := range g.bitmaps {
		dirty[block] = true
	}
}

func (g *copyingGuest) DirtyBytes(_ context.Context, checkpoint string) (map[string]uint64, error) {
	if g.bitmaps[checkpoint] == nil {
		return nil, domain.ErrCheckpointLost
	}
	return map[string]uint64{"root": 1}, nil
}

func (g *copyingGuest) DeleteCheckpoint(_ context.Context, name string) error {
	delete(g.bitmaps, name)
	return nil
}

func (g *copyingGuest) PrepareBackup(_ context.Context, b domain.Backup) (domain.BeginFunc, error) {
	return func(context.Context) error {
		var file bytes.Buffer
		for block, value := range g.disk {
			if base := b.Disks[0].Incremental; base == "" || g.bitmaps[base][block] {
				file.Write([]byte{block, value})
			}
		}
		g.bitmaps[b.Checkpoint] = map[byte]bool{}
		err := os.WriteFile(b.Disks[0].Target, file.Bytes(), 0o600)
		if g.during != nil {
			err = errors.Join(err, g.during())
		}
		g.Set(func() { g.JobInfo = domain.JobInfo{Known: true, Err: err} })
		return nil
	}, nil
}

// model is one machine, its trackers and two claims. Claims are directories. A deleted claim is gone with its files,
// and a claim that is created again has another number.
type model struct {
	t        *testing.T
	guest    *copyingGuest
	claims   [2]int
	next     int
	trackers map[string]*modelBase
	done     []modelBackup
	root     string
}

func (m *model) dir(claim int) string { return filepath.Join(m.root, fmt.Sprint(claim)) }

func (m *model) makeClaim(slot int) {
	m.next++
	m.claims[slot] = m.next
	if err := os.Mkdir(m.dir(m.next), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) deleteClaim(slot int) {
	_ = os.RemoveAll(m.dir(m.claims[slot]))
	m.makeClaim(slot)
}

// backup does the work of controller and handler around the launcher's job: the plan, and the tracker that moves after DONE.
func (m *model) backup(tracker string, slot int, during func() error) {
	m.next++
	claim, base := m.claims[slot], m.trackers[tracker]
	uid := fmt.Sprintf("u%d", m.next)
	req := &pb.BeginBackupRequest{
		Uid: uid, Name: uid, Namespace: "ns", Vm: "vm", Tracker: tracker, Checkpoint: tracker + uid,
		Volumes: []*pb.BackupVolume{{Volume: "root", FullReason: "NoCheckpoint"}}, TargetVolume: "x", Directory: "vm/" + uid, SkipQuiesce: true,
	}
	// As handler/backup plans it: the bitmap must be valid, and the claim must be the base's by UID.
	if base != nil && m.guest.bitmaps[base.checkpoint] != nil && base.claim == claim {
		req.BaseCheckpoint, req.BaseBackupUid, req.BaseDirectory, req.BaseManifestSha256 = base.checkpoint, base.uid, base.directory, base.digest
		req.Volumes[0].Incremental, req.Volumes[0].FullReason = true, ""
	}
	content := maps.Clone(m.guest.disk)
	m.guest.during = during
	got := m.run(req, claim)
	// As controller/backup decides it: the tracker moves only after DONE, and only while the claim is still the one that was written.
	if got.Phase != pb.Backup_DONE || m.claims[slot] != claim {
		delete(m.guest.bitmaps, req.Checkpoint)
		return
	}
	if base != nil {
		delete(m.guest.bitmaps, base.checkpoint)
	}
	m.trackers[tracker] = &modelBase{checkpoint: req.Checkpoint, uid: uid, directory: req.Directory, digest: got.ManifestSha256, claim: claim}
	m.done = append(m.done, modelBackup{claim: claim, directory: req.Directory, content: content})
	// At this moment everything that the new restore point needs must exist.
	if restored, err := m.restore(claim, req.Directory); err != nil || !maps.Equal(restored, content) {
		verdict.Fatalf(m.t, "%s (incremental %v) restores %v, want %v: %v", req.Directory, got.Volumes[0].Incremental, restored, content, err)
	}
}

func (m *model) run(req *pb.BeginBackupRequest, claim int) *pb.Backup {
	mountInfo := filepath.Join(m.root, "mountinfo")
	if err := os.WriteFile(mountInfo, fmt.Appendf(nil, "1 2 3:4 / %s rw - ext4 /dev/x rw\n", m.dir(claim)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	raw := filepath.Join(m.root, "raw")
	if err := os.WriteFile(raw, nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.guest.Set(func() { m.guest.JobInfo = domain.JobInfo{} })
	j, err := New(m.t.Context(), Config{
		Config: backupjob.Config{
			Guest: m.guest, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
			Disks:          map[string]backupjob.Disk{"root": {RawPath: raw, VirtualBytes: 1 << 20, Tracked: true}},
			AgentConnected: func() bool { return false },
			Changed:        func() {},
		},
		Images:     &fakeImages{backing: map[string]string{}},
		OpenTarget: func(string) (*target.Volume, error) { return target.Open(m.dir(claim), mountInfo) },
	}, req)
	if err != nil {
		m.t.Fatal(err)
	}
	j.Run()
	return j.Snapshot()
}

// restore resolves a chain as a user does: from the manifests alone.
func (m *model) restore(claim int, directory string) (map[byte]byte, error) {
	data, err := os.ReadFile(filepath.Join(m.dir(claim), directory, "backup.json"))
	if err != nil {
		return nil, err
	}
	decoded, err := manifest.Decode(data)
	if err != nil {
		return nil, err
	}
	content := map[byte]byte{}
	if decoded.Volumes[0].Type == manifest.Incremental {
		if content, err = m.restore(claim, path.Join(directory, decoded.Parent.Directory)); err != nil {
			return nil, err
		}
	}
	blocks, err := os.ReadFile(filepath.Join(m.dir(claim), directory, "root.qcow2"))
	for i := 0; i+1 < len(blocks); i += 2 {
		content[blocks[i]] = blocks[i+1]
	}
	return content, err
}

// TestModel_everyDoneBackupRestores plays random histories of trackers, claims, failures and tampering with the
// targets. Each backup that ends DONE must restore, at that moment, to what the disk held.
func TestModel_everyDoneBackupRestores(t *testing.T) {
	t.Parallel()
	incrementals := 0
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &model{t: t, trackers: map[string]*modelBase{}, root: t.TempDir()}
			m.guest = &copyingGuest{
				Guest: backupjobtest.NewGuest(),
				disk:  map[byte]byte{0: 1, 1: 1}, bitmaps: map[string]map[byte]bool{},
			}
			m.makeClaim(0)
			m.makeClaim(1)
			for range rapid.IntRange(3, 20).Draw(r, "steps") {
				m.step(r)
			}
			for _, b := range m.done {
				if d, err := os.ReadFile(filepath.Join(m.dir(b.claim), b.directory, "backup.json")); err == nil && bytes.Contains(d, []byte(`"Incremental"`)) {
					incrementals++
				}
			}
		})
	})
	if incrementals == 0 {
		t.Error("no history had an incremental that stayed")
	}
}

func (m *model) step(r *rapid.T) {
	slot := rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(r, "claim") // long chains need the same claim and tracker
	tracker := rapid.SampledFrom([]string{"a", "a", "a", "a", "b"}).Draw(r, "tracker")
	for range rapid.IntRange(0, 3).Draw(r, "writes") {
		m.guest.write(rapid.Byte().Draw(r, "block")%8, rapid.Byte().Draw(r, "value"))
	}
	var during func() error
	switch rapid.SampledFrom([]string{"backup", "backup", "backup", "backup", "backup", "fails", "claim goes", "meddled with", "delete claim", "meddle", "crash", "swap", "new tracker"}).Draw(r, "what") {
	case "fails":
		during = func() error { return errors.New("storage error") }
	case "claim goes":
		during = func() error { m.deleteClaim(slot); return nil }
	case "meddled with":
		during = func() error { m.meddle(r, slot); return nil }
	case "delete claim":
		m.deleteClaim(slot)
		return
	case "meddle":
		m.meddle(r, slot)
		return
	case "crash":
		clear(m.guest.bitmaps)
		return
	case "swap":
		m.claims[0], m.claims[1] = m.claims[1], m.claims[0]
		return
	case "new tracker":
		delete(m.trackers, tracker)
		return
	}
	m.backup(tracker, slot, during)
}

// meddle tampers with a complete backup on a claim: it removes the backup, plants a copy of it under another name,
// puts another in its place, or removes its disk's file.
func (m *model) meddle(r *rapid.T, slot int) {
	found, err := filepath.Glob(filepath.Join(m.dir(m.claims[slot]), "vm", "u*", "backup.json"))
	if err != nil || len(found) == 0 {
		return
	}
	dir := filepath.Dir(rapid.SampledFrom(found).Draw(r, "backup"))
	other := filepath.Dir(rapid.SampledFrom(found).Draw(r, "other"))
	switch rapid.IntRange(0, 4).Draw(r, "how") {
	case 0:
		err = os.RemoveAll(dir)
	case 1:
		m.next++
		err = os.CopyFS(filepath.Join(filepath.Dir(dir), fmt.Sprintf("000-%d", m.next)), os.DirFS(dir))
	case 2:
		if dir != other {
			err = errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(other)))
		}
	case 3:
		err = os.RemoveAll(filepath.Join(dir, "root.qcow2"))
	case 4:
		err = os.Rename(dir, dir+".partial")
	}
	if err != nil {
		m.t.Fatal(err)
	}
}
