//go:build libvirt_dlopen

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/nbdvolume"
	"github.com/varvebackup/varve/internal/extent"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/pull"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/verdict"
)

// serve begins a pull backup and waits until it serves. Incremental if there is a base.
func (p *pod) serve(uid, target, base string) *pb.Backup {
	p.Helper()
	req := p.request(uid, target)
	req.Pull = true
	if base != "" {
		req.BaseCheckpoint, req.BaseBackupUid = "cp-"+base, base
		for _, v := range req.Volumes {
			v.Incremental, v.FullReason = true, ""
		}
	}
	p.begin(req)
	return p.await("backup "+uid+" serves", func(s *pb.State) bool {
		return s.Backup.GetUid() == uid && (s.Backup.Phase == pb.Backup_SERVING || s.Backup.Phase == pb.Backup_FAILED)
	}).Backup
}

// pulled reads what scope has of a volume over the bytes of base, and returns the result and what was read.
func (p *pod) pulled(volume string, incremental bool, base []byte) (content []byte, read extent.Set) {
	p.Helper()
	o := nbdvolume.Options{Name: volume, PointInTime: "test"}
	if incremental {
		o.Bitmap = domain.ChangesBitmap
	}
	v, err := pull.OpenNBD(p.Context(), layout.NBDSocket, o)
	if err != nil {
		p.Fatal(err)
	}
	defer v.Close()
	content = make([]byte, v.Info().Bytes)
	copy(content, base)
	err = v.Read(p.Context(), extent.Extent{Length: v.Info().Bytes}, export.Changed, func(c export.Chunk) error {
		if part := content[c.Offset:c.End()]; c.Data == nil {
			clear(part)
		} else {
			copy(part, c.Data)
		}
		read.Append(c.Extent)
		return nil
	})
	if err != nil {
		p.Fatal(err)
	}
	return content, read
}

func (p *pod) finish(uid string) {
	p.Helper()
	if _, err := p.client.FinishBackup(p.Context(), &pb.FinishBackupRequest{Uid: uid}); err != nil {
		p.Fatal(err)
	}
	p.done(uid)
	if left, err := filepath.Glob(layout.UtilityDir + "/*/vm/*"); err != nil || len(left) > 0 {
		p.Errorf("backup %s left %v: %v", uid, left, err)
	}
	if _, err := os.Stat(layout.NBDSocket); !os.IsNotExist(err) {
		p.Errorf("backup %s left its socket: %v", uid, err)
	}
}

func (p *pod) wantBytes(what string, got []byte, reference string) {
	p.Helper()
	want, err := os.ReadFile(reference)
	if err != nil {
		p.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		verdict.Errorf(p, "%s differs from %s", what, reference)
	}
}

// A full pull while the guest overwrites everything, an incremental one, and one whose scratch space is full.
func TestPull_servesARunningGuest(t *testing.T) {
	p := newPod(t, 32*mib)
	p.target("backup-1", 256*mib)
	p.target("narrow", 72*mib)
	p.up()

	p.guest("echo first >/disks/fs/file; sync")
	reference := p.reference("full")
	if b := p.serve("full", "backup-1", ""); b.Quiesce != pb.Backup_FROZEN || b.PointInTime == nil || b.TotalBytes < uint64(32*mib) {
		t.Fatalf("%v", b)
	}
	p.guest("echo late >/disks/fs/file; sync; dd if=/dev/urandom of=/dev/vdb bs=1M count=48 oflag=direct 2>/dev/null")
	content, _ := p.pulled("data", false, nil)
	p.wantBytes("data", content, reference)
	fs, _ := p.pulled("fs", false, nil)
	if err := os.WriteFile(p.dir+"/fs.raw", fs, 0o600); err != nil {
		t.Fatal(err)
	}
	p.run("e2fsck", "-fn", p.dir+"/fs.raw")
	if got := p.run("debugfs", "-R", "cat /file", p.dir+"/fs.raw"); !strings.HasSuffix(got, "first\n") {
		verdict.Errorf(t, "the file in the backup: %q", got)
	}
	if s := p.await("scratch is used", func(s *pb.State) bool { return s.Backup.ScratchUsedBytes > uint64(32*mib) }); s.Backup.ScratchFreeBytes == 0 {
		t.Errorf("%v", s.Backup)
	}
	if _, err := p.client.FinishBackup(t.Context(), &pb.FinishBackupRequest{Uid: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another backup is finished: %v", err)
	}
	p.finish("full")

	p.guest("dd if=/dev/zero of=/dev/vdb bs=64k count=3 seek=100 oflag=direct 2>/dev/null")
	after := p.reference("third")
	p.serve("second", "backup-1", "full")
	p.guest("dd if=/dev/urandom of=/dev/vdb bs=64k count=40 seek=90 oflag=direct 2>/dev/null")
	content, read := p.pulled("data", true, content)
	p.wantBytes("data", content, after)
	if read.Bytes() != 48*mib {
		verdict.Errorf(t, "%d bytes are in the incremental, and 48 MiB were written", read.Bytes())
	}
	p.finish("second")
	p.scratchIsFull()
	p.await("the failed backup left no checkpoint", func(s *pb.State) bool {
		return cmp.Equal(names(s.Checkpoints), []string{"cp-full", "cp-second"})
	})
	content, read = p.pulledAgain(content)
	p.wantBytes("data", content, p.reference("last"))
	if read.Bytes() < 40*mib {
		verdict.Errorf(t, "only %d bytes are in the incremental after a failed backup", read.Bytes())
	}
	p.finish("fourth")

	p.serve("off", "backup-1", "fourth")
	p.run("virsh", "-q", "shutdown", "ns_vm", "--mode", "acpi")
	p.failed("off", pb.Backup_GUEST_SHUTDOWN)
}

// scratchIsFull lets the guest overwrite more than there is space for. Its writes succeed.
func (p *pod) scratchIsFull() {
	p.Helper()
	if b := p.serve("full-scratch", "narrow", "second"); b.Phase != pb.Backup_SERVING {
		p.Fatalf("%v", b)
	}
	p.guest("dd if=/dev/urandom of=/dev/vdb bs=1M count=64 oflag=direct 2>/dev/null && sync")
	b := p.failed("full-scratch", pb.Backup_SCRATCH_FULL)
	p.Log(b.Message)
	p.await("the guest runs", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING })
}

func (p *pod) pulledAgain(base []byte) ([]byte, extent.Set) {
	p.Helper()
	p.serve("fourth", "backup-1", "second")
	return p.pulled("data", true, base)
}
