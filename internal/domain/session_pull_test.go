//go:build libvirt_dlopen

package domain

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

// beginPull begins a pull backup of the disks and returns clients of their exports.
func (m *machine) beginPull(name, base string, volumes ...string) map[string]*nbd.Client {
	m.Helper()
	b := Backup{Checkpoint: name, Socket: filepath.Join(m.dir, name+".sock")}
	for _, v := range volumes {
		b.Disks = append(b.Disks, BackupDisk{Volume: v, Target: m.target(v, name), Incremental: base})
	}
	m.begin(b)
	clients := map[string]*nbd.Client{}
	for _, v := range volumes {
		o := nbd.Options{Contexts: []string{nbd.ContextAllocation, nbd.ContextDirtyBitmap + ChangesBitmap}, Connections: 2}
		c, err := nbd.Dial(m.Context(), nbd.Target{Network: "unix", Address: b.Socket, Export: v}, o)
		if err != nil {
			m.Fatal(err)
		}
		m.Cleanup(func() { _ = c.Close() })
		clients[v] = c
	}
	return clients
}

// endPull ends a pull backup as a success.
func (m *machine) endPull() {
	m.Helper()
	if err := m.AbortBackup(m.Context()); err != nil {
		m.Fatal(err)
	}
	if e := m.await(EventBackupCompleted); e.Err != nil {
		m.Errorf("a pull backup that was ended: %v", e.Err)
	}
	if job, err := m.BackupJob(m.Context()); err != nil || job.Active || !job.Known || job.Err != nil {
		m.Errorf("job %+v: %v", job, err)
	}
}

// wantServed compares an export with a file.
func (m *machine) wantServed(c *nbd.Client, file string) {
	m.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		m.Fatal(err)
	}
	got := make([]byte, c.Info().Bytes)
	if err := c.ReadAt(m.Context(), got, 0); err != nil {
		m.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		verdict.Errorf(m, "the export differs from %s", file)
	}
}

func dirtyClusters(t *testing.T, c *nbd.Client) (clusters []int64) {
	t.Helper()
	dirty, err := c.Dirty(t.Context(), extent.Extent{Length: c.Info().Bytes}, ChangesBitmap)
	if err != nil {
		t.Fatal(err)
	}
	for e := range dirty.All() {
		for at := e.Offset; at < e.End(); at += cluster {
			clusters = append(clusters, at/cluster)
		}
	}
	return clusters
}

func TestPull_servesThePointInTimeAndItsChanges(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	m.write("d0", 0xa1, 0, 3, 100, 101, 1023)
	reference := m.reference("d0", "full")
	full := m.beginPull("c0", "", "d0")["d0"]
	if !full.Info().Flags.Has(nbd.FlagCanMultiConn) || full.Connections() != 2 {
		t.Errorf("%d connections, flags %v", full.Connections(), full.Info().Flags)
	}
	// New data, data over data, zeroes over data, and a discard, which QEMU drops while a pull backup runs.
	m.write("d0", 0xb2, 3, 500)
	m.io("d0", "write -z 6553600 65536", "discard 67043328 65536", "write -P 0x00 0 65536")
	m.wantServed(full, reference)
	data, err := full.Data(t.Context(), extent.Extent{Length: 64 * mib})
	if err != nil || data.Bytes() != 5*cluster {
		verdict.Errorf(t, "%d bytes of data: %v", data.Bytes(), err)
	}
	m.endPull()

	reference = m.reference("d0", "incremental")
	incremental := m.beginPull("c1", "c0", "d0")["d0"]
	m.write("d0", 0xc3, 0, 3, 7, 500)
	m.wantServed(incremental, reference)
	if diff := cmp.Diff([]int64{0, 3, 100, 500}, dirtyClusters(t, incremental)); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	m.endPull()
	m.wantCheckpoints(map[string][]string{"c0": {"d0"}, "c1": {"d0"}})
	if diff := cmp.Diff([]int64{0, 3, 7, 500}, ownClusters(t, m.capture("c2", "c1", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "writes during the pull are not in the next backup:\n%s", diff)
	}
}
