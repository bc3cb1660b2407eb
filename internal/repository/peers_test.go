//go:build peers

package repository

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// makeHistory makes restore points of a disk that changes, and returns the last one with what the disk holds.
func makeHistory(t *testing.T, r *Repository, points int) (*RestorePoint, []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	disk := &memory{data: make([]byte, 70*mib+777)}
	disk.write(random, extent.Extent{Offset: 5 * mib, Length: 9 * mib}, false)
	disk.write(random, extent.Extent{Offset: 69 * mib, Length: mib + 777}, false)
	var last *RestorePoint
	for i := range points {
		p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(int64(1000+i), 0), Disks: []DiskSource{disk.source(i > 0)}})
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && p.Disks[0].FullReason != "" {
			t.Errorf("restore point %d is full: %s", i, p.Disks[0].FullReason)
		}
		if last = p; i < points-1 {
			disk.write(random, extent.Extent{Offset: int64(i) * 20 * mib, Length: 300000}, false)
		}
	}
	return last, disk.data
}

// The upstream kopia reads everything, and its maintenance loses nothing.
func TestKopiaReadsWhatVarveWrites(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	last, want := makeHistory(t, r, 3)
	kopia := func(args ...string) {
		t.Helper()
		cmd := exec.Command(s3.Program(t, "kopia"), append([]string{"--config-file=" + config, "--log-dir=" + t.TempDir()}, args...)...)
		cmd.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kopia %v: %v\n%s", args, err, out)
		}
	}
	restores := func(id string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "out")
		kopia("snapshot", "restore", id, dir)
		got, err := os.ReadFile(filepath.Join(dir, "root"))
		if err != nil || !bytes.Equal(got, want) {
			verdict.Errorf(t, "kopia restores %d bytes that differ: %v", len(got), err)
		}
	}
	// A snapshot of kopia's own is in the same repository, and stays.
	files := filepath.Join(t.TempDir(), "files")
	if err := os.CopyFS(files, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	kopia("snapshot", "create", files)
	kopia("snapshot", "list", "--all")
	kopia("snapshot", "verify", "--verify-files-percent=100")
	restores(last.Snapshot)
	kopia("snapshot", "pin", "--add=kept", last.Snapshot)
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	kopia("snapshot", "verify", "--verify-files-percent=100")
	// Maintenance belongs to Varve: kopia refuses it without --force.
	kopia("maintenance", "run", "--full", "--safety=none", "--force")
	fresh := open(t, config)
	pinned, err := fresh.Get(t.Context(), last.ID)
	if err != nil || !slices.Equal(pinned.Pins, []string{"kept"}) {
		t.Fatalf("%+v, %v", pinned, err)
	}
	restores(pinned.Snapshot)
	same(t, fresh, pinned, want)
}

// `kopia snapshot expire` leaves restore points to Varve, and so does kopia's expiry when it stores a snapshot.
func TestKopiaExpire_keepsRestorePoints(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: []byte("disk")}
	for i := range 12 {
		if _, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(int64(i+1), 0), Disks: []DiskSource{disk.source(false)}}); err != nil {
			t.Fatal(err)
		}
	}
	kopia := exec.CommandContext(t.Context(), s3.Program(t, "kopia"), "--config-file="+config, "--log-dir="+t.TempDir(), "snapshot", "expire", "--all", "--delete")
	kopia.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
	if out, err := kopia.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) != 12 {
		verdict.JudgeErrorf(t, err == nil, "%d restore points, %v", len(points), err)
	}
	if err := fresh.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}); err != nil {
		t.Error(err)
	}
}

// onS3 makes a repository behind e and opens it.
func onS3(t *testing.T, e s3.Endpoint, o CreateOptions) (*Repository, string) {
	t.Helper()
	at := Location{S3: &S3{
		Endpoint: e.Address, Bucket: e.Bucket, Region: e.Region, Prefix: "varve/", PlainHTTP: e.Authority == nil, RootCA: e.Authority,
		AccessKey: e.AccessKey, SecretKey: e.SecretKey,
	}}
	if err := Create(t.Context(), at, testPassword, o); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "repository.config")
	if err := Connect(t.Context(), config, at, testPassword, ConnectOptions{Host: "host", User: "varve"}); err != nil {
		t.Fatal(err)
	}
	return open(t, config), config
}

// This is an S3 server that speaks TLS with an authority of its own and locks what is written.
func TestS3WithTLSAndObjectLock(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true, ObjectLock: true})
	r, config := onS3(t, server.Endpoint, CreateOptions{LockMode: "COMPLIANCE", LockPeriod: 24 * time.Hour})
	last, want := makeHistory(t, r, 3)
	same(t, open(t, config), last, want)
	time.Sleep(2 * time.Second) // Locks are in whole seconds.
	maintained := time.Now()
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}); err != nil {
		t.Fatal(err)
	}
	client, locked := server.Client(t), 0
	for _, name := range []string{storage.RecordPrefix + last.ID, string(storage.FormatCopy)} {
		about, err := client.StatObject(t.Context(), server.Bucket, "varve/"+name, minio.StatObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// The lock lasts a day from maintenance, not from when the blob was stored.
		until, err := time.Parse(time.RFC3339, about.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
		if err != nil || until.Before(maintained.Add(24*time.Hour-time.Second)) {
			t.Errorf("%s is locked until %v: %v", name, until, err)
		}
	}
	// Nobody can delete a pack, not even with the keys.
	for o := range client.ListObjects(t.Context(), server.Bucket, minio.ListObjectsOptions{Prefix: "varve/p", WithVersions: true, Recursive: true}) {
		err := o.Err
		if err != nil {
			t.Fatal(err)
		}
		locked++
		if err := client.RemoveObject(t.Context(), server.Bucket, o.Key, minio.RemoveObjectOptions{VersionID: o.VersionID, GovernanceBypass: true}); err == nil {
			t.Errorf("%s was deleted", o.Key)
		}
	}
	if locked == 0 {
		t.Error("no packs")
	}
	// A deletion only hides what is locked.
	if err := r.Delete(t.Context(), last.ID); err != nil {
		t.Fatal(err)
	}
	if points, err := open(t, config).List(t.Context(), nil); err != nil || len(points) != 2 {
		t.Errorf("%v, %v", points, err)
	}
	if report, err := r.Verify(t.Context(), VerifyOptions{}); err != nil || report.Damaged() {
		verdict.JudgeErrorf(t, err == nil, "%+v, %v", report, err)
	}
}

// Whatever the storage does, a backup is complete or invisible, and the next one works.
func TestFaultsOfTheStorage(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]s3.Fault{
		"500": s3.InternalError, "503": s3.SlowDown, "reply lost": s3.DropReply, "request cut": s3.CutRequest, "response cut": s3.CutResponse, "reset": s3.Reset,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := s3.Start(t, s3.Options{})
			faults := s3.StartFaults(t, server, 0)
			r, _ := onS3(t, faults.Endpoint, CreateOptions{})
			faults.Set(s3.Rule{Fault: fault, Probability: 0.2})
			last, want := makeHistory(t, r, 3)
			same(t, r, last, want)
			if faults.Fired(0) == 0 {
				t.Error("no fault happened")
			}
			faults.Set()
			points, err := r.List(t.Context(), nil)
			if err != nil || len(points) != 3 {
				t.Errorf("%d restore points: %v", len(points), err)
			}
		})
	}
}

// A server is killed while a backup uploads, and comes back. The backup goes on, or fails and leaves nothing.
func TestBackup_whenTheServerIsKilled(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	r, config := onS3(t, server.Endpoint, CreateOptions{})
	disk := &memory{data: make([]byte, 64*mib)}
	disk.write(rand.New(rand.NewPCG(1, 1)), extent.Extent{Length: 64 * mib}, false)
	source := disk.source(false)
	source.Reader = slowly{disk}
	go func() {
		time.Sleep(100 * time.Millisecond)
		server.Kill(t)
		time.Sleep(300 * time.Millisecond)
		server.Restart(t)
	}()
	_, first := r.Backup(context.WithoutCancel(t.Context()), Request{Source: testSource, Disks: []DiskSource{source}, FlushEvery: 50 * time.Millisecond})
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || (first == nil) != (len(points) == 1) || len(points) > 1 {
		t.Fatalf("backup: %v; %d restore points: %v", first, len(points), err)
	}
	t.Logf("the backup: %v", first)
	p, err := fresh.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, fresh, p, disk.data)
}
