package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

// ending cancels a context when a certain text is written.
type ending struct {
	mu     sync.Mutex
	text   string
	at     string
	cancel context.CancelFunc
}

func (e *ending) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text += string(p)
	if e.at != "" && strings.Contains(e.text, e.at) {
		e.cancel()
	}
	return len(p), nil
}

// program runs varve in this process until it ends, or until it writes at to standard error, which interrupts it.
type program struct {
	t   *testing.T
	dir string
}

func (p *program) run(at string, args ...string) (stdout, report string, code int) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	var out, said bytes.Buffer
	env := map[string]string{"VARVE_PASSWORD": "a password", "VARVE_REPO_CONFIG": filepath.Join(p.dir, "config")}
	err := run(ctx, append([]string{"varve"}, args...), func(name string) string { return env[name] }, stdio{in: strings.NewReader(""), out: &out, err: &ending{at: at, cancel: cancel}})
	cli.Report(&said, err, "varve")
	return out.String(), said.String(), failure.Code(err)
}

func (p *program) must(args ...string) string {
	p.t.Helper()
	out, report, code := p.run("", args...)
	if code != 0 {
		p.t.Fatalf("varve %v: %d: %s", args, code, report)
	}
	return strings.TrimSpace(out)
}

// A user who interrupts a backup or a restore is told what became of it, and nothing is left half done.
func TestInterruption(t *testing.T) {
	t.Parallel()
	p := &program{t: t, dir: t.TempDir()}
	disk, out := filepath.Join(p.dir, "disk.img"), filepath.Join(p.dir, "out.img")
	content := random(3<<20, "interruption")
	if err := os.WriteFile(disk, content, 0o600); err != nil {
		t.Fatal(err)
	}
	p.must("repo", "create", filepath.Join(p.dir, "blobs"))

	_, report, code := p.run(`"phase":"Storing"`, "disk", "backup", "web", "root="+disk, "--progress", "json")
	if want := "error: interrupted: no restore point of web was made\nhint: run the same command again: it stores what is missing\n"; code != errclass.ExitInterrupted || report != want {
		t.Errorf("backup: %d: %s", code, report)
	}
	if list := p.must("disk", "list", "-o", "name"); list != "" {
		t.Errorf("there is a restore point: %s", list)
	}
	id := p.must("disk", "backup", "web", "root="+disk, "-o", "name")

	_, report, code = p.run(`"phase":"Writing"`, "disk", "restore", id, out, "--progress", "json")
	if want := "error: interrupted: " + out + " is not complete\nhint: run the same command again: it continues where this one ended\n"; code != errclass.ExitInterrupted || report != want {
		t.Errorf("restore: %d: %s", code, report)
	}
	if _, _, code := p.run("", "disk", "backup", "web", "root="+out); code != errclass.ExitRefused {
		t.Errorf("half of a restore was backed up: %d", code)
	}
	p.must("disk", "restore", id, out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, content) {
		verdict.Errorf(t, "other bytes: %v", err)
	}
	for _, command := range [][]string{{"disk", "verify"}, {"repo", "maintenance"}} {
		_, report, code := p.run(`"phase":"`, append(command, "--progress", "json")...)
		if code != errclass.ExitInterrupted || report != "error: interrupted\n" {
			t.Errorf("%v: %d: %s", command, code, report)
		}
	}
	p.must("disk", "verify")
}
