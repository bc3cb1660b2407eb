package domain

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
)

// moving is a machine whose overlays move from one claim to another. Its disk "root" had a clean run "first".
type moving struct {
	*testing.T
	old, new Overlays
	raw      string
	overlay  []byte
	owners   map[string]Owner
}

var (
	movedIdentity = Identity{ClaimUID: "claim", VirtualBytes: 1 << 20}
	nextRun       = Run{ID: "second", Previous: "first"}
)

func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{
		T: t, old: Overlays{Dir: t.TempDir()}, new: Overlays{Dir: t.TempDir()},
		raw: filepath.Join(t.TempDir(), "disk.img"), owners: map[string]Owner{"root": {ClaimUID: "claim", Run: nextRun}},
	}
	m.overlay = append(bytes.Repeat([]byte{1}, 100_000), make([]byte, 1<<20)...)
	m.write(m.raw, make([]byte, 1<<20))
	m.write(m.old.Path("root"), m.overlay)
	m.ok(writeRecord(m.old.recordPath("root"), &record{Identity: movedIdentity, Run: "first", Clean: m.cleanRecord(&m.old, "first")}))
	return m
}

func (m *moving) ok(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *moving) write(path string, data []byte) {
	m.Helper()
	m.ok(os.WriteFile(path, data, 0o600))
}

func (m *moving) cleanRecord(o *Overlays, seed string) *cleanRecord {
	m.Helper()
	c, err := cleanNow(m.raw, o.Path("root"), seed)
	m.ok(err)
	return c
}

func (m *moving) move() map[string]error {
	m.Helper()
	lost, err := m.new.MoveFrom(m.Context(), m.old.Dir, m.owners)
	m.ok(err)
	return lost
}

// renewal returns why a run would make a new overlay in a claim, or Kept.
func (m *moving) renewal(o *Overlays, run Run) Renewed {
	m.Helper()
	seen, err := o.lookAt("root", m.raw)
	m.ok(err)
	return renewalReason(seen, movedIdentity, run)
}

func (m *moving) files(o *Overlays) []string {
	m.Helper()
	entries, err := os.ReadDir(o.Dir)
	m.ok(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestMove_takesOverlaysAlong(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	for range 2 { // the second time there is nothing to do
		if lost := m.move(); len(lost) > 0 {
			t.Fatal(lost)
		}
		if got := m.renewal(&m.new, nextRun); got != Kept {
			t.Errorf("there: %q", got)
		}
		if got := m.renewal(&m.old, nextRun); got != NewOverlay {
			t.Errorf("in the old claim it is still good: %q", got)
		}
		if got, err := os.ReadFile(m.new.Path("root")); err != nil || !bytes.Equal(got, m.overlay) {
			t.Errorf("the overlay changed (%v)", err)
		}
		if diff := cmp.Diff([]string{"root.json", "root.qcow2"}, m.files(&m.new)); diff != "" {
			t.Error(diff)
		}
	}
}

// What is void in the old claim is void in the new one, for the same reason.
func TestMove_makesNothingValid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(m *moving)
		run     Run
		want    Renewed
	}{
		"nothing":                 {func(*moving) {}, nextRun, Kept},
		"another run between":     {func(*moving) {}, Run{ID: "third", Previous: "second"}, UsedElsewhere},
		"an unknown run":          {func(*moving) {}, Run{ID: "second"}, UsedElsewhere},
		"the disk was written":    {func(m *moving) { m.write(m.raw, bytes.Repeat([]byte{9}, 1<<20)) }, nextRun, WrittenWithoutOverlay},
		"the overlay was written": {func(m *moving) { m.write(m.old.Path("root"), m.overlay[1:]) }, nextRun, WrittenWithoutOverlay},
		"the overlay was touched": {func(m *moving) {
			m.ok(os.Chtimes(m.old.Path("root"), time.Unix(1, 0), time.Unix(1, 0)))
		}, nextRun, WrittenWithoutOverlay},
		"the guest crashed": {func(m *moving) { m.ok(m.old.MarkStarted([]string{"root"})) }, nextRun, NotClean},
		"the claim is another": {func(m *moving) {
			m.ok(writeRecord(m.old.recordPath("root"), &record{Identity: Identity{ClaimUID: "other", VirtualBytes: 1 << 20}, Run: "first", Clean: m.cleanRecord(&m.old, "first")}))
		}, nextRun, DiskReplaced},
		"the disk has grown": {func(m *moving) {
			m.ok(writeRecord(m.old.recordPath("root"), &record{Identity: Identity{ClaimUID: "claim", VirtualBytes: 1 << 19}, Run: "first", Clean: m.cleanRecord(&m.old, "first")}))
		}, nextRun, DiskReplaced},
		"the record is torn":  {func(m *moving) { m.ok(os.Truncate(m.old.recordPath("root"), 20)) }, nextRun, NewOverlay},
		"the record is lost":  {func(m *moving) { m.ok(os.Remove(m.old.recordPath("root"))) }, nextRun, NewOverlay},
		"the overlay is lost": {func(m *moving) { m.ok(os.Remove(m.old.Path("root"))) }, nextRun, NewOverlay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			c.happens(m)
			if got := m.renewal(&m.old, c.run); got != c.want {
				t.Fatalf("before: %q, want %q", got, c.want)
			}
			m.owners["root"] = Owner{ClaimUID: "claim", Run: c.run}
			if lost := m.move(); len(lost) > 0 {
				t.Error(lost)
			}
			if got := m.renewal(&m.new, c.run); got != c.want {
				t.Errorf("after: %q, want %q", got, c.want)
			}
			if got := m.renewal(&m.old, c.run); got == Kept {
				t.Error("valid in the old claim, too")
			}
		})
	}
}

// A crash at any line leaves an overlay that the next start can go on with, and never two of which one is out of date.
func TestMove_survivesACrash(t *testing.T) {
	t.Parallel()
	third := Run{ID: "third", Previous: "second"}
	for name, crash := range map[string]func(m *moving){
		"before anything":            func(*moving) {},
		"after the run is handed on": func(m *moving) { m.ok(m.old.HandOn("root", "claim", nextRun)) },
		"while it copies": func(m *moving) {
			m.ok(m.old.HandOn("root", "claim", nextRun))
			m.write(m.new.Path("root")+".new", m.overlay[:1000])
		},
		"with the overlay and no record": func(m *moving) {
			m.ok(m.old.HandOn("root", "claim", nextRun))
			m.write(m.new.Path("root"), m.overlay)
		},
		"while it writes the record": func(m *moving) {
			m.ok(m.old.HandOn("root", "claim", nextRun))
			m.write(m.new.Path("root"), m.overlay)
			m.write(m.new.recordPath("root")+".new", []byte(`{"vers`))
		},
		"with both records": func(m *moving) {
			m.ok(m.old.HandOn("root", "claim", nextRun))
			before, err := os.ReadFile(m.old.recordPath("root"))
			m.ok(err)
			m.move()
			m.write(m.old.recordPath("root"), before)
		},
		"after everything": func(m *moving) { m.move() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			crash(m)
			run := third
			if name == "before anything" {
				run = nextRun // the next start has another run, but its predecessor did nothing
			}
			m.owners["root"] = Owner{ClaimUID: "claim", Run: run}
			if lost := m.move(); len(lost) > 0 {
				t.Error(lost)
			}
			m.ok(m.new.Retain([]string{"root"}))
			if got := m.renewal(&m.new, run); got != Kept {
				t.Errorf("renewed: %q", got)
			}
			if got := m.renewal(&m.old, run); got == Kept {
				t.Error("valid in the old claim, too")
			}
			if diff := cmp.Diff([]string{"root.json", "root.qcow2"}, m.files(&m.new)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A guest has run on the new claim while the old one was still there. What the old one has left must not come back.
func TestMove_neverGoesBackToAnOlderOverlay(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	before, err := os.ReadFile(m.old.recordPath("root"))
	m.ok(err)
	m.move()
	m.ok(m.new.HandOn("root", "claim", nextRun))
	m.ok(m.new.MarkStarted([]string{"root"}))
	m.write(m.new.Path("root"), []byte("newer"))
	m.ok(m.new.MarkClean(map[string]Opened{"root": {RawPath: m.raw, Run: "second"}}))
	m.write(m.old.recordPath("root"), before) // as if its removal had not become durable
	third := Run{ID: "third", Previous: "second"}
	m.owners["root"] = Owner{ClaimUID: "claim", Run: third}
	m.move()
	if got, err := os.ReadFile(m.new.Path("root")); err != nil || string(got) != "newer" {
		t.Errorf("%d bytes (%v)", len(got), err)
	}
	if got := m.renewal(&m.new, third); got != Kept {
		t.Errorf("renewed: %q", got)
	}
	// Even if somebody deletes the new claim now, the old overlay stays void.
	m.write(m.old.recordPath("root"), before)
	if got := m.renewal(&m.old, third); got != UsedElsewhere {
		t.Errorf("in the old claim: %q", got)
	}
}

func TestMove_whatCannotBeCopiedIsVoid(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.ok(os.Remove(m.old.Path("root")))
	secret := filepath.Join(t.TempDir(), "secret")
	m.write(secret, []byte("secret"))
	m.ok(os.Symlink(secret, m.old.Path("root")))
	lost := m.move()
	if lost["root"] == nil {
		t.Errorf("lost %v", lost)
	}
	if _, err := os.Lstat(m.new.Path("root")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link was followed: %v", err)
	}
	for _, o := range []*Overlays{&m.old, &m.new} {
		if got := m.renewal(o, nextRun); got == Kept {
			t.Errorf("kept in %s", o.Dir)
		}
	}
	if size, err := m.new.DiskOf("claim", ""); size != 1<<20 || err != nil {
		t.Errorf("the disk is forgotten: %d bytes, %v", size, err)
	}
}

func TestMove_doesNotWriteThroughALink(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	victim := filepath.Join(t.TempDir(), "victim")
	m.write(victim, []byte("precious"))
	m.ok(os.Symlink(victim, m.new.Path("root")+".new"))
	m.ok(os.Symlink(victim, m.new.Path("root")))
	if lost := m.move(); len(lost) > 0 {
		t.Error(lost)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "precious" {
		t.Errorf("%q, %v", got, err)
	}
	if got := m.renewal(&m.new, nextRun); got != Kept {
		t.Errorf("renewed: %q", got)
	}
}

func TestMove_recordsOfOtherDisksGoAlong(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.owners = map[string]Owner{"other": {ClaimUID: "elsewhere", Run: nextRun}}
	if lost := m.move(); len(lost) > 0 {
		t.Error(lost)
	}
	if diff := cmp.Diff([]string{"root.json"}, m.files(&m.new)); diff != "" {
		t.Error(diff)
	}
	if size, err := m.new.DiskOf("claim", ""); size != 1<<20 || err != nil {
		t.Errorf("%d bytes, %v", size, err)
	}
	if got := m.renewal(&m.new, nextRun); got != NewOverlay {
		t.Errorf("a record without its overlay: %q", got)
	}
}

func TestMove_isAnErrorIfTheOldOneStaysValid(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	// The record of another disk is a directory that is not empty, so that it cannot be removed.
	m.ok(os.MkdirAll(m.old.recordPath("data")+"/x", 0o700))
	if _, err := m.new.MoveFrom(t.Context(), m.old.Dir, m.owners); err == nil || !strings.Contains(err.Error(), "data") || errors.Is(err, errclass.Invalid) {
		t.Errorf("error %v", err)
	}
}
