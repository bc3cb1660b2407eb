package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

// meanwhile calls do once, when at has been written. The writer waits for it.
type meanwhile struct {
	mu   sync.Mutex
	text string
	at   string
	do   func()
}

func (m *meanwhile) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text += string(p)
	if m.do != nil && strings.Contains(m.text, m.at) {
		m.do()
		m.do = nil
	}
	return len(p), nil
}

// while runs varve, and calls do when varve writes at. do may end varve.
func (p *program) while(at string, do func(end func()), args ...string) (said string, err error) {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	m := &meanwhile{at: at, do: func() { do(cancel) }}
	env := map[string]string{"VARVE_PASSWORD": "a password", "VARVE_REPO_CONFIG": filepath.Join(p.dir, "config")}
	var out bytes.Buffer
	err = run(ctx, append([]string{"varve"}, args...), func(name string) string { return env[name] }, stdio{in: strings.NewReader(""), out: &out, err: m})
	if m.do != nil {
		p.t.Errorf("it did not say %q, but %s", at, m.text)
	}
	return m.text, err
}

// newProgram makes a repository with two restore points that share nothing.
func newProgram(t *testing.T) (p *program, id string, content []byte) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lease") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p = &program{t: t, dir: dir}
	disk := filepath.Join(dir, "disk.img")
	p.must("repo", "create", filepath.Join(dir, "blobs"))
	for _, name := range []string{"one", "two"} {
		content = random(3<<20, name)
		if err := os.WriteFile(disk, content, 0o600); err != nil {
			t.Fatal(err)
		}
		id = p.must("disk", "backup", "web", "root="+disk, "-o", "name")
	}
	return p, id, content
}

// free deletes the restore point, and frees what nothing refers to.
func (p *program) free(id string) {
	p.t.Helper()
	p.must("disk", "delete", id, "--yes")
	for range 2 { // the first run rewrites packs that are not full, and the second finds the old ones to be garbage
		p.maintain()
	}
}

// maintain runs full maintenance in a second of its own: indexes have times in seconds, and a deletion counts only if
// it is later.
func (p *program) maintain() {
	p.t.Helper()
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	p.must("repo", "maintenance", "--full", "--exclusive")
}

// freed checks that what was kept while it was being read is freed afterwards.
func (p *program) freed() {
	p.t.Helper()
	contents := func() (n int) {
		p.t.Helper()
		var report struct{ Contents int }
		if err := json.Unmarshal([]byte(p.must("disk", "verify", "--progress", "none", "-o", "json")), &report); err != nil {
			p.t.Fatal(err)
		}
		return report.Contents
	}
	before := contents()
	p.maintain()
	if after := contents(); after > before-3<<20/(256<<10) {
		p.t.Errorf("there were %d contents, and are %d", before, after)
	}
}

// A restore completes even if the restore point is deleted and freed while it runs.
func TestRestore_ofWhatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	p, id, content := newProgram(t)
	out := filepath.Join(p.dir, "out.img")
	said, err := p.while(`"phase":"Writing"`, func(func()) { p.free(id) }, "disk", "restore", id, out, "--progress", "json")
	if err != nil || strings.Contains(said, "warning") {
		t.Fatalf("%v; it said %s", err, said)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, content) {
		verdict.Errorf(t, "other bytes: %v", err)
	}
	p.freed()
}

// A restore point that is being served stays readable even if it is deleted and freed.
func TestServe_whatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	p, id, content := newProgram(t)
	socket := filepath.Join(p.dir, "s")
	got := make([]byte, len(content))
	said, err := p.while("interrupt to end\n", func(end func()) {
		p.free(id)
		go func() { // it serves once this has returned
			defer end()
			if err := read(t.Context(), socket, got); err != nil {
				t.Error(err)
			}
		}()
	}, "disk", "serve", id, "--socket", socket, "--cache-size", "1Mi")
	if failure.Code(err) != 0 || strings.Contains(said, "warning") {
		t.Fatalf("%v; it said %s", err, said)
	}
	if !bytes.Equal(got, content) {
		verdict.Errorf(t, "other bytes")
	}
	p.freed()
}

// read reads a whole export.
func read(ctx context.Context, socket string, into []byte) error {
	c, err := nbd.Dial(ctx, nbd.Target{Network: "unix", Address: socket, Export: "root"}, nbd.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.ReadAt(ctx, into, 0)
}
