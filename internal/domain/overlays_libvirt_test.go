//go:build libvirt_dlopen

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
	"github.com/varvebackup/varve/internal/sparse"
	"github.com/varvebackup/varve/internal/tracking"
	"github.com/varvebackup/varve/test/verdict"
)

// rawDisk makes a file with data in every MiB.
func rawDisk(t *testing.T, size int64) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	for at := int64(0); at < size; at += mib {
		copy(content[at:], bytes.Repeat([]byte{byte(at/mib) + 1}, 5000))
	}
	path = filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// prepareIn prepares the overlay for another start in the same run.
func prepareIn(t *testing.T, o *Overlays, raw string, id Identity) Renewed {
	t.Helper()
	return prepareRun(t, o, raw, id, Run{ID: "run"})
}

func prepareRun(t *testing.T, o *Overlays, raw string, id Identity, run Run) Renewed {
	t.Helper()
	why, err := o.Prepare(t.Context(), "root", raw, id, run)
	if err != nil {
		t.Fatal(err)
	}
	return why
}

func TestOverlay_neverChangesTheDisk(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, content := rawDisk(t, 16*mib)
	if got := prepareIn(t, o, raw, Identity{ClaimUID: "a", VirtualBytes: 16 * mib}); got != NewOverlay {
		t.Errorf("got %q", got)
	}
	after, err := os.ReadFile(raw)
	if err != nil || !bytes.Equal(content, after) {
		verdict.Fatalf(t, "the raw disk changed: %v", err)
	}
	// The overlay shows what the disk has.
	sameBytes(t, raw, o.Path("root"))
	run(t, "qemu-img", "check", o.Path("root"))
	left, err := filepath.Glob(o.Dir + "/*.new")
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// An overlay with a bitmap moves to a larger claim: QEMU finds the bitmap there, over the same disk, and the file is as sparse as
// it was, without which a full backup would read the whole disk.
func TestOverlay_movesWithItsBitmaps(t *testing.T) {
	t.Parallel()
	const size = 64 * mib
	old, larger := &Overlays{Dir: t.TempDir()}, &Overlays{Dir: t.TempDir()}
	raw, content := rawDisk(t, size)
	id := Identity{ClaimUID: "a", VirtualBytes: size}
	prepareRun(t, old, raw, id, Run{ID: "first"})
	run(t, "qemu-img", "bitmap", "--add", old.Path("root"), "base")
	run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 7 1M 64k", old.Path("root"))
	if err := old.MarkStarted([]string{"root"}); err != nil {
		t.Fatal(err)
	}
	if err := old.MarkClean(map[string]Opened{"root": {RawPath: raw, Run: "first"}}); err != nil {
		t.Fatal(err)
	}
	copy(content[mib:], bytes.Repeat([]byte{7}, 64<<10))
	used := diskUsage(t, old.Path("root"))

	next := Run{ID: "second", Previous: "first"}
	lost, err := larger.MoveFrom(t.Context(), old.Dir, map[string]Owner{"root": {ClaimUID: "a", Run: next}})
	if err != nil || len(lost) > 0 {
		t.Fatal(err, lost)
	}
	if got := prepareRun(t, larger, raw, id, next); got != Kept {
		t.Fatalf("renewed: %q", got)
	}
	if got := prepareRun(t, old, raw, id, next); got != NewOverlay {
		t.Errorf("the old one: %q", got)
	}
	if info := run(t, "qemu-img", "info", larger.Path("root")); !strings.Contains(info, "name: base") || !strings.Contains(info, raw) {
		t.Errorf("no bitmap, or another disk:\n%s", info)
	}
	run(t, "qemu-img", "check", larger.Path("root"))
	run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, larger.Path("root"))
	if after, err := os.ReadFile(raw); err != nil || !bytes.Equal(content, after) {
		verdict.Errorf(t, "the raw disk changed: %v", err)
	}
	if moved := diskUsage(t, larger.Path("root")); moved > used {
		t.Errorf("%d bytes used, %d before", moved, used)
	}
}

func TestOverlay_isKeptOnlyForItsDisk(t *testing.T) {
	t.Parallel()
	const size = 4 * mib
	id := Identity{ClaimUID: "a", ContentGeneration: "1", VirtualBytes: size}
	// A clean run of a guest, and what happens before the next start.
	for name, c := range map[string]struct {
		happens func(t *testing.T, o *Overlays, raw string) Identity
		want    Renewed
	}{
		"nothing": {func(*testing.T, *Overlays, string) Identity { return id }, Kept},
		"other claim": {func(*testing.T, *Overlays, string) Identity {
			return Identity{ClaimUID: "b", ContentGeneration: "1", VirtualBytes: size}
		}, DiskReplaced},
		"content replaced": {func(*testing.T, *Overlays, string) Identity {
			return Identity{ClaimUID: "a", ContentGeneration: "2", VirtualBytes: size}
		}, DiskReplaced},
		"grown": {func(t *testing.T, _ *Overlays, raw string) Identity {
			if err := os.Truncate(raw, 2*size); err != nil {
				t.Fatal(err)
			}
			return Identity{ClaimUID: "a", ContentGeneration: "1", VirtualBytes: 2 * size}
		}, DiskReplaced},
		"one byte written to the disk": {func(t *testing.T, _ *Overlays, raw string) Identity {
			writeByte(t, raw)
			return id
		}, WrittenWithoutOverlay},
		"disk file replaced, time and size the same": {func(t *testing.T, _ *Overlays, raw string) Identity {
			replaceFile(t, raw)
			return id
		}, WrittenWithoutOverlay},
		"overlay written": {func(t *testing.T, o *Overlays, _ string) Identity {
			writeByte(t, o.Path("root"))
			return id
		}, WrittenWithoutOverlay},
		"guest started and never ended cleanly": {func(t *testing.T, o *Overlays, _ string) Identity {
			if err := o.MarkStarted([]string{"root"}); err != nil {
				t.Fatal(err)
			}
			return id
		}, NotClean},
		"record lost": {func(t *testing.T, o *Overlays, _ string) Identity {
			if err := os.Remove(o.recordPath("root")); err != nil {
				t.Fatal(err)
			}
			return id
		}, NewOverlay},
		"record torn": {func(t *testing.T, o *Overlays, _ string) Identity {
			if err := os.Truncate(o.recordPath("root"), 20); err != nil {
				t.Fatal(err)
			}
			return id
		}, NewOverlay},
		"overlay lost": {func(t *testing.T, o *Overlays, _ string) Identity {
			if err := os.Remove(o.Path("root")); err != nil {
				t.Fatal(err)
			}
			return id
		}, NewOverlay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &Overlays{Dir: t.TempDir()}
			raw, _ := rawDisk(t, size)
			prepareIn(t, o, raw, id)
			run(t, "qemu-img", "bitmap", "--add", o.Path("root"), "base")
			if err := o.MarkStarted([]string{"root"}); err != nil {
				t.Fatal(err)
			}
			if err := o.MarkClean(map[string]Opened{"root": {RawPath: raw, Run: "run"}}); err != nil {
				t.Fatal(err)
			}
			next := c.happens(t, o, raw)
			if got := prepareIn(t, o, raw, next); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if has := strings.Contains(run(t, "qemu-img", "info", o.Path("root")), "name: base"); has != (c.want == Kept) {
				t.Errorf("%q, and a bitmap of before: %v", c.want, has)
			}
			if got := prepareIn(t, o, raw, next); got != Kept {
				t.Errorf("the overlay is not good for the same disk afterwards: %q", got)
			}
			sameBytes(t, raw, o.Path("root"))
		})
	}
}

// TestMarkNotStarted_restoresWhatNobodyTouched: a guest that could not be started does not cost any disk its base.
func TestMarkNotStarted_restoresWhatNobodyTouched(t *testing.T) {
	t.Parallel()
	id := Identity{ClaimUID: "a", VirtualBytes: 4 * mib}
	for name, c := range map[string]struct {
		happens func(t *testing.T, o *Overlays, raw string)
		want    Renewed
	}{
		"nothing":         {func(*testing.T, *Overlays, string) {}, Kept},
		"overlay touched": {func(t *testing.T, o *Overlays, _ string) { writeByte(t, o.Path("root")) }, NotClean},
		"disk touched":    {func(t *testing.T, _ *Overlays, raw string) { writeByte(t, raw) }, NotClean},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &Overlays{Dir: t.TempDir()}
			raw, _ := rawDisk(t, 4*mib)
			prepareIn(t, o, raw, id)
			if err := o.MarkStarted([]string{"root"}); err != nil {
				t.Fatal(err)
			}
			c.happens(t, o, raw)
			for range 2 {
				if err := o.MarkNotStarted(map[string]Opened{"root": {RawPath: raw, Run: "run"}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := prepareIn(t, o, raw, id); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestMarkNotStarted_bringsNothingBackAfterACrash: after a crash, what was clean before a successful start means nothing.
func TestMarkNotStarted_bringsNothingBackAfterACrash(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	id := Identity{ClaimUID: "a", VirtualBytes: 4 * mib}
	prepareIn(t, o, raw, id)
	if err := o.MarkStarted([]string{"root"}); err != nil {
		t.Fatal(err)
	}
	writeByte(t, raw) // the guest ran, and QEMU was killed
	if got := prepareRun(t, o, raw, id, Run{ID: "next", Previous: "run"}); got != NotClean {
		t.Fatalf("%q", got)
	}
	if err := o.MarkStarted([]string{"root"}); err != nil {
		t.Fatal(err)
	}
	if err := o.MarkNotStarted(map[string]Opened{"root": {RawPath: raw, Run: "run"}}); err != nil {
		t.Fatal(err)
	}
	if got := prepareRun(t, o, raw, id, Run{ID: "last", Previous: "next"}); got != NotClean {
		t.Errorf("a start of another run was taken back: %q", got)
	}
}

func TestLetGo_endsTheOverlay(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	id := Identity{ClaimUID: "a", VirtualBytes: 4 * mib}
	if err := o.LetGo("root"); err != nil {
		t.Errorf("without an overlay: %v", err)
	}
	prepareIn(t, o, raw, id)
	if err := o.LetGo("root"); err != nil {
		t.Fatal(err)
	}
	if got := prepareIn(t, o, raw, id); got != UsedElsewhere {
		t.Errorf("%q", got)
	}
}

func TestDiskOf_knowsTheClaimUnderAnyVolumeName(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	prepareIn(t, o, raw, Identity{ClaimUID: "a", ContentGeneration: "1", VirtualBytes: 4 * mib})
	if err := os.WriteFile(o.recordPath("torn"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim, generation string
		want              int64
	}{{"a", "1", 4 * mib}, {"a", "2", 0}, {"b", "1", 0}} {
		if got, err := o.DiskOf(c.claim, c.generation); err != nil || got != c.want {
			t.Errorf("claim %s, generation %s: %d, %v", c.claim, c.generation, got, err)
		}
	}
}

func writeByte(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xee}, 3*mib/2); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// replaceFile replaces a file with a copy that has the same size and time.
func replaceFile(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "cp", path, path+".copy")
	if err := os.Chtimes(path+".copy", info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".copy", path); err != nil {
		t.Fatal(err)
	}
}

func TestOverlay_failedRenewalLeavesNoIdentity(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	first := Identity{ClaimUID: "a", VirtualBytes: 4 * mib}
	prepareIn(t, o, raw, first)
	// The new overlay cannot be made, because a directory has its temporary name.
	if err := os.MkdirAll(o.Path("root")+".new/x", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Prepare(t.Context(), "root", raw, Identity{ClaimUID: "b", VirtualBytes: 4 * mib}, Run{ID: "run"}); err == nil {
		t.Fatal("no error")
	}
	if err := os.RemoveAll(o.Path("root") + ".new"); err != nil {
		t.Fatal(err)
	}
	if got := prepareIn(t, o, raw, first); got != NewOverlay {
		t.Errorf("after a renewal that failed midway: %q", got)
	}
}

func TestOverlay_refusesAWrongSize(t *testing.T) {
	t.Parallel()
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	if _, err := o.Prepare(t.Context(), "root", raw, Identity{ClaimUID: "a", VirtualBytes: 8 * mib}, Run{ID: "run"}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("got %v", err)
	}
	if err := os.Truncate(raw, 4*mib+100); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Prepare(t.Context(), "root", raw, Identity{ClaimUID: "a", VirtualBytes: 4*mib + 100}, Run{ID: "run"}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("got %v", err)
	}
}

func TestOverlay_overALargeDisk(t *testing.T) {
	t.Parallel()
	const size = 1 << 40
	o := &Overlays{Dir: t.TempDir()}
	raw := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(raw, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(raw, size); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	prepareIn(t, o, raw, Identity{ClaimUID: "a", VirtualBytes: size})
	t.Logf("overlay of 1 TiB: %v, %d MiB", time.Since(began), diskUsage(t, o.Path("root"))/mib)
	if used, room := diskUsage(t, o.Path("root")), tracking.StateClaimSize([]int64{size}); used*2 > room {
		t.Errorf("the overlay has %d bytes, but its claim is sized at %d", used, room)
	}
	if diff := cmp.Diff(int64(0), diskUsage(t, raw)); diff != "" {
		t.Errorf("the raw disk was allocated: %s", diff)
	}
}

func TestSparse_holesKeepTheContent(t *testing.T) {
	t.Parallel()
	path, content := rawDisk(t, 4*mib)
	content = append(content, 1, 2, 3, 0, 0, 0) // the end is not a whole block
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	before := diskUsage(t, path)
	if err := sparse.Dig(path, holeBytes); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(content, after) {
		verdict.Errorf(t, "the content changed: %v", err)
	}
	// 5000 bytes of data in each of 4 MiB are two blocks each, plus one at the end. The file system adds some of its own.
	if got := diskUsage(t, path); got > 12*holeBytes || got >= before {
		t.Errorf("%d bytes allocated, %d before", got, before)
	}
}
