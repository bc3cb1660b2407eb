//go:build peers

package repository

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/s3"
)

// While a backup runs, the upstream kopia stores snapshots, expires those of all sources and maintains, again and again. So does
// Varve, which also deletes what the backup started from. The session manifest stays, and the restore point is intact.
func TestSession_besideKopia(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	// kopia keeps incomplete snapshots that are newer than the latest complete one. This one is newer than all of them.
	later := time.Now().Add(time.Hour)
	first, err := s.r.Backup(t.Context(), Request{Source: testSource, Time: later, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	disk.write(s.random, extent.Extent{Offset: mib, Length: 20 * mib}, false)
	kopia := s.kopia()
	d := disk.source(true)
	d.Reader = &hooked{memory: disk, call: func() {
		for round := range 3 {
			kopia("snapshot", "create", ".")
			kopia("snapshot", "expire", "--all", "--delete")
			kopia("maintenance", "run", "--full", "--force")
			if round == 0 {
				refresh(t, s.others)
				if err := s.others.Delete(t.Context(), first.ID); err != nil {
					t.Error(err)
				}
			}
			s.maintain()
			refresh(t, s.others)
			if n := leases(t, s.others); n != 1 {
				t.Errorf("round %d: %d session manifests", round, n)
			}
		}
	}}
	p, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{d}})
	if err != nil {
		t.Fatal(err)
	}
	if p.Disks[0].FullReason != "" {
		t.Errorf("full: %s", p.Disks[0].FullReason)
	}
	for range 2 {
		kopia("snapshot", "expire", "--all", "--delete")
		kopia("maintenance", "run", "--full", "--force")
		s.maintain()
	}
	same(t, s.opened(t, s.connect(t, "fresh", !cached)), p, disk.data)
	kopiaVerifies(t, s.location())
}

// kopia connects the upstream kopia, and returns a function that runs one of its commands.
func (s *longSite) kopia() func(args ...string) {
	s.t.Helper()
	dir := s.t.TempDir()
	config := filepath.Join(dir, "repository.config")
	o := ConnectOptions{CacheDirectory: filepath.Join(dir, "cache"), CacheBytes: 64 * mib, Host: "host", User: "kopia"}
	if err := Connect(s.t.Context(), config, s.location(), testPassword, o); err != nil {
		s.t.Fatal(err)
	}
	program := s3.Program(s.t, "kopia")
	return func(args ...string) {
		s.t.Helper()
		cmd := exec.CommandContext(s.t.Context(), program, append([]string{"--config-file=" + config, "--log-dir=" + dir}, args...)...)
		cmd.Env = append(os.Environ(), "KOPIA_PASSWORD="+testPassword, "KOPIA_CHECK_FOR_UPDATES=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Error(fmt.Errorf("kopia %v: %w: %s", args, err, out))
		}
	}
}
