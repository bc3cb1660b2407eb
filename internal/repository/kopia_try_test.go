package repository

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

func TestKopiaReadsIt(t *testing.T) {
	kopia := os.Getenv("KOPIA")
	if kopia == "" {
		t.Skip()
	}
	r, config := newRepository(t)
	disk := &memory{data: make([]byte, 200*mib+777)}
	random := rand.New(rand.NewPCG(1, 1))
	disk.write(random, extent.Extent{Offset: 5 * mib, Length: 20 * mib}, false)
	disk.write(random, extent.Extent{Offset: 199 * mib, Length: mib + 777}, false)
	var last *RestorePoint
	for i := range 3 {
		p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(int64(1000+i), 0), Disks: []DiskSource{disk.source(true)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", p.Disks[0])
		last = p
		if i < 2 {
			disk.write(random, extent.Extent{Offset: 70 * mib, Length: 300000}, false)
		}
	}
	run := func(args ...string) []byte {
		c := exec.Command(kopia, append([]string{"--config-file=" + config, "--password=" + testPassword, "--log-dir=" + t.TempDir()}, args...)...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		t.Logf("%v:\n%s", args, out)
		return out
	}
	run("snapshot", "list", "--all")
	run("snapshot", "verify", "--verify-files-percent=100")
	out := filepath.Join(t.TempDir(), "out")
	run("snapshot", "restore", last.ID, out)
	got, err := os.ReadFile(filepath.Join(out, "root"))
	if err != nil || !bytes.Equal(got, disk.data) {
		t.Fatalf("%v %d %v", err, len(got), bytes.Equal(got, disk.data))
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	run("maintenance", "info")
	run("maintenance", "run", "--full", "--safety=none")
	same(t, r, last, disk.data)
}
