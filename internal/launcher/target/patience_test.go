package target

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/test/verdict"
)

// hang has the volume's storage give no answer to the nth removal, until the function that it returns is called.
func hang(v *Volume, nth int) (answer func()) {
	hung, seen := make(chan struct{}), 0
	v.Before = func(access string) error {
		if access != "remove" {
			return nil
		}
		if seen++; seen == nth {
			<-hung
		}
		return nil
	}
	return func() { close(hung) }
}

func TestWaitFor_isBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		began := time.Now()
		err := WaitFor(time.Minute, func(ctx context.Context) error {
			<-answer
			if ctx.Err() == nil {
				t.Error("what comes too late cannot know it")
			}
			return nil
		})
		if took := time.Since(began); !errors.Is(err, ErrNotResponding) || took != time.Minute {
			t.Errorf("%v after %s", err, took)
		}
		close(answer)
		if err := WaitFor(time.Minute, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }); !errors.Is(err, ErrNotResponding) {
			t.Errorf("what stops with its context: %v", err)
		}
		if err := WaitFor(time.Minute, func(context.Context) error { panic("a mistake") }); err == nil || !strings.Contains(err.Error(), "a mistake") {
			t.Errorf("a panic: %v", err)
		}
		if err := WaitFor(time.Minute, func(context.Context) error { return fs.ErrExist }); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v", err)
		}
	})
}

// A removal that ends long after it was given up leaves the files of the next attempt alone.
func TestRelease_thatComesTooLateRemovesNothingNew(t *testing.T) {
	t.Parallel()
	for nth := 1; nth <= 4; nth++ { // the directory, its two files, and its name
		dir := t.TempDir()
		first := open(t, dir)
		if err := first.Begin("vm/b1", "u"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := os.WriteFile(first.Path(PartialFile("vm/b1", name)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Test(t, func(t *testing.T) {
			answer := hang(first, nth)
			if err := first.Release("vm/b1"); !errors.Is(err, ErrNotResponding) || !strings.Contains(err.Error(), "vm/b1.partial") {
				t.Errorf("%v", err)
			}
			second := open(t, dir)
			if err := second.Begin("vm/b1", "u"); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"a", "b"} {
				if err := os.WriteFile(second.Path(PartialFile("vm/b1", name)), []byte("new"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			answer()
			synctest.Wait()
			for _, name := range []string{"a", "b"} {
				if data, err := os.ReadFile(second.Path(PartialFile("vm/b1", name))); err != nil || string(data) != "new" {
					verdict.Errorf(t, "%d: the next attempt's file: %q, %v", nth, data, err)
				}
			}
			if _, err := first.FreeBytes(); err == nil {
				t.Error("the volume stays open after the late removal")
			}
		})
	}
}

// Whoever writes to the volume may put a link in the place of the directory.
func TestDiscard_followsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := open(t, dir)
	backup(t, v, "vm/b0", "u0")
	if err := v.Root().Symlink("b0", "vm/b1.partial"); err != nil {
		t.Fatal(err)
	}
	if err := v.Discard(t.Context(), "vm/b1"); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Root().Lstat("vm/b1.partial"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link is left: %v", err)
	}
	if _, err := os.Stat(v.Path("vm/b0/root.qcow2")); err != nil {
		t.Errorf("the files behind the link: %v", err)
	}
	// More entries than are read at once, and a directory among them.
	if err := v.Begin("vm/b2", "u2"); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		if err := os.MkdirAll(v.Path(PartialFile("vm/b2", strconv.Itoa(i))+"/nested"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Discard(t.Context(), "vm/b2"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(v.Path("vm/b2.partial")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}
