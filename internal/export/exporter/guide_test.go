//go:build nbd_interop

package exporter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/verdict"
)

// guide is docs/pull.md: its files by name, and its commands in their order.
type guide struct {
	files  map[string]string
	script string
}

// fence matches a block of code, with the name of the file that it is.
var fence = regexp.MustCompile("(?sm)(?:^<!-- file ([\\w.]+) -->\n)?^```(\\w*)\n(.*?)^```$")

// readGuide splits the document. A block in a language that is neither run nor a file fails the test.
func readGuide(t *testing.T) guide {
	t.Helper()
	text, err := os.ReadFile("../../../docs/pull.md")
	if err != nil {
		t.Fatal(err)
	}
	g := guide{files: map[string]string{}}
	commands := 0
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		switch name, language, code := m[1], m[2], m[3]; {
		case name != "":
			g.files[name] = code
		case language == "sh":
			commands++
			g.script += fmt.Sprintf("echo '--- commands %d' >&2\n%s", commands, code)
		case language != "":
			t.Errorf("a block of %s is neither run nor a file:\n%s", language, code)
		}
	}
	if len(g.files) != 4 || commands < 8 {
		t.Fatalf("%d files and %d blocks of commands", len(g.files), commands)
	}
	return g
}

// TestGuide_itsExamplesRun runs every command of docs/pull.md, with stock clients, against export pods of a machine that writes
// on, and compares what they store with the points in time.
func TestGuide_itsExamplesRun(t *testing.T) {
	t.Parallel()
	g, c, dir := readGuide(t), newCluster(t), t.TempDir()
	server := httptest.NewServer(c)
	defer server.Close()
	for name, code := range g.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o700), os.WriteFile(filepath.Join(bin, "kubectl"), fmt.Appendf(nil, stub, server.URL), 0o700)); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	// What the first commands store is the disk as it was then.
	first := bytes.Clone(c.disks["root"])
	run := func(script string) (string, error) {
		command := exec.CommandContext(t.Context(), "sh", "-euc", script)
		command.Dir = dir
		command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		return string(out), err
	}
	began := time.Now()
	if out, err := run(g.script); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("all commands ran in %s, with %d readings that were cut", time.Since(began).Round(time.Millisecond), c.cut.Load())
	file := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	for _, name := range []string{"root.raw", "sparse.raw"} {
		if !bytes.Equal(file(name), first) {
			verdict.Errorf(t, "%s is not the disk", name)
		}
	}
	if !bytes.Equal(file("first.raw"), first[:65536]) {
		verdict.Errorf(t, "first.raw is not the beginning of the disk")
	}
	if out, err := run("qemu-img compare -f raw -F qcow2 root.raw root.qcow2"); err != nil {
		verdict.JudgeErrorf(t, verdict.Differ(err), "%s", out)
	}
	var spec, released struct {
		Regions, Extents []struct{ Offset, Length int64 }
		Size             int64
	}
	if err := errors.Join(json.Unmarshal(file("regions.json"), &spec), json.Unmarshal(file("extents.json"), &released)); err != nil {
		t.Error(err)
	}
	if len(spec.Regions) < 3 || !slices.Equal(spec.Regions, released.Extents) || spec.Size != released.Size {
		verdict.Errorf(t, "the dialects differ: %+v and %+v", spec, released)
	}
	stored := 0
	for _, uid := range c.order {
		if _, err := os.Stat(filepath.Join(dir, "store", string(uid))); err != nil {
			continue // one of those by hand
		}
		stored++
		for name, want := range c.taken[uid] {
			if !bytes.Equal(file(filepath.Join("store", string(uid), name+".raw")), want) {
				verdict.Errorf(t, "backup %s: disk %s is not its point in time", uid, name)
			}
		}
	}
	if stored != 11 {
		t.Errorf("%d backups are stored", stored)
	}
	if len(c.backups) > 0 {
		t.Errorf("%d backups are left", len(c.backups))
	}
	if c.cut.Load() == 0 || c.late.Load() == 0 {
		t.Errorf("%d readings were cut, %d launchers were late: the examples had nothing to try again", c.cut.Load(), c.late.Load())
	}
	// Without the base of an incremental, and with a wrong token, nothing is stored as if it were whole.
	for what, c := range map[string]struct{ script, want string }{
		"no base":     {"mkdir other; python3 pull.py backup.json token other", "forceFullBackup"},
		"wrong token": {"kubectl apply -f once.yaml; kubectl get vmbackup web-once -o json >once.json; echo wrong >wrong; python3 pull.py once.json wrong store", ": 401 "},
	} {
		if out, err := run(c.script); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
}
