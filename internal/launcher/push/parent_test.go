package push

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/manifest"
)

// parentManifest returns the manifest of the full backup that incrementalRequest continues.
func parentManifest(volumes ...string) []byte {
	m := manifest.Manifest{
		Namespace: "ns", VM: "vm", Backup: manifest.Backup{Name: "b1", UID: "u1"}, Tracker: "t", Checkpoint: "cp1", PointInTime: time.Unix(1, 0),
	}
	for _, name := range volumes {
		m.Volumes = append(m.Volumes, manifest.Volume{Name: name, Type: manifest.Full, File: name + ".qcow2", SHA256: strings.Repeat("ab", 32)})
	}
	data, err := manifest.Encode(m)
	if err != nil {
		panic(err)
	}
	return data
}

// makeParent creates that backup on the target.
func (b *bench) makeParent(volumes ...string) {
	b.makeBackup("vm/b1", parentManifest(volumes...), volumes...)
}

func (b *bench) makeBackup(directory string, manifest []byte, volumes ...string) {
	b.Helper()
	path := filepath.Join(b.dir, directory)
	err := errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "backup.json"), manifest, 0o600))
	for _, name := range volumes {
		err = errors.Join(err, os.WriteFile(filepath.Join(path, name+".qcow2"), []byte("data"), 0o600))
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) readManifest(directory string) *manifest.Manifest {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, directory, "backup.json"))
	if err != nil {
		b.Fatal(err)
	}
	m, err := manifest.Decode(data)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// What is on the target when an incremental of root and data is requested, and what happens to each disk.
func TestParent_isProvenOrTheDiskIsFull(t *testing.T) {
	t.Parallel()
	both := []string{"root", "data"}
	for name, test := range map[string]struct {
		arrange func(b *bench)
		// full maps a disk that is full to its reason.
		full map[string]string
	}{
		"the parent is there": {func(b *bench) { b.makeParent(both...) }, nil},
		"the target is empty": {func(*bench) {}, map[string]string{"root": "ParentMissing", "data": "ParentMissing"}},
		"a directory with the parent's UID, planted": {func(b *bench) {
			b.makeBackup("vm/000", parentManifest(both...), both...)
		}, map[string]string{"root": "ParentMissing", "data": "ParentMissing"}},
		"the same beside the parent": {func(b *bench) {
			b.makeBackup("vm/000", parentManifest(both...), both...)
			b.makeParent(both...)
		}, nil},
		"another backup in the parent's place": {func(b *bench) {
			b.makeParent("root")
		}, map[string]string{"root": "ParentChanged", "data": "ParentChanged"}},
		"a disk's file is gone": {func(b *bench) {
			b.makeParent(both...)
			if err := os.Remove(filepath.Join(b.dir, "vm/b1/data.qcow2")); err != nil {
				b.Fatal(err)
			}
		}, map[string]string{"data": "ParentMissing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				test.arrange(b)
				req := incrementalRequest()
				j := b.job(req)
				b.complete(j)
				got := b.run(j)
				if got.Phase != pb.Backup_DONE || len(got.ManifestSha256) != 64 {
					t.Fatalf("%v", got)
				}
				m, backing := b.readManifest("vm/b2"), map[string]string{}
				for i, volume := range both {
					reason, full := test.full[volume]
					if !full {
						backing[volume+".qcow2"] = "../b1/" + volume + ".qcow2"
					}
					written, told, begun := m.Volumes[i], got.Volumes[i], b.guest.Begun.Disks[i]
					if (written.Type == manifest.Full) != full || written.FullReason != reason {
						t.Errorf("the manifest says %+v, want full %v for %q", written, full, reason)
					}
					if told.Incremental == full || told.FullReason != reason {
						t.Errorf("the state says %v, want full %v for %q", told, full, reason)
					}
					if (begun.Incremental == "") != full {
						t.Errorf("libvirt was asked for %+v, want full %v", begun, full)
					}
					if !req.Volumes[i].Incremental {
						t.Error("the caller's request was changed")
					}
				}
				if diff := cmp.Diff(backing, b.images.backing); diff != "" {
					t.Errorf("backing files: %s", diff)
				}
				if p := m.Parent; (p != nil) != (len(backing) > 0) || p != nil && (p.Directory != "../b1" || p.ManifestSHA256 != req.BaseManifestSha256) {
					t.Errorf("parent %+v", p)
				}
			})
		})
	}
}

// A target that returns an error says nothing about the parent. The backup fails and does not become full.
func TestParent_anErrorFailsTheBackup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		// A symlink loop is an error even for root.
		if err := errors.Join(os.MkdirAll(b.dir+"/vm", 0o755), os.Symlink("b1", b.dir+"/vm/b1")); err != nil {
			t.Fatal(err)
		}
		got := b.run(b.job(incrementalRequest()))
		if got.Failure != pb.Backup_TARGET_INVALID || !strings.Contains(got.Message, "forceFullBackup") || b.guest.Count("BeginBackup") > 0 {
			t.Errorf("%v", got)
		}
	})
}

// Somebody cleans up the target while the incremental is written.
func TestParent_mustStillBeThereAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.makeParent("root", "data")
		j := b.job(incrementalRequest())
		b.complete(j)
		end := b.guest.On["BeginBackup"]
		b.guest.On["BeginBackup"] = func() {
			end()
			if err := os.RemoveAll(b.dir + "/vm/b1"); err != nil {
				t.Error(err)
			}
		}
		got := b.run(j)
		if got.Failure != pb.Backup_TARGET_INVALID || !strings.Contains(got.Message, target.ErrParentMissing.Error()) {
			t.Errorf("%v", got)
		}
		if left, err := os.ReadDir(b.dir); err != nil || len(left) > 0 {
			t.Errorf("left on the target: %v, %v", left, err)
		}
	})
}

func TestRequest_incrementalSaysWhereItsParentIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, forget := range map[string]func(*pb.BeginBackupRequest){
		"directory": func(r *pb.BeginBackupRequest) { r.BaseDirectory = "" },
		"digest":    func(r *pb.BeginBackupRequest) { r.BaseManifestSha256 = "" },
	} {
		req := incrementalRequest()
		forget(req)
		if _, err := New(t.Context(), b.cfg, req); !errors.Is(err, backupjob.ErrRequest) {
			t.Errorf("without the %s: %v", name, err)
		}
	}
}
