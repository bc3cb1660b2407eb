package durable

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/test/verdict"
)

// Those who write a file at once do not get in each other's way: its content is always that of one of them.
func TestWrite_byManyAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	var all errgroup.Group
	for writer := range 8 {
		content := bytes.Repeat([]byte{byte('a' + writer)}, 1000*(writer+1))
		all.Go(func() error {
			for range 30 {
				if err := Write(path, content); err != nil {
					return err
				}
				got, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if len(got) == 0 || len(got) != 1000*int(got[0]-'a'+1) ||
					!bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
					verdict.Errorf(t, "%d bytes are of no writer", len(got))
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if names := namesIn(t, filepath.Dir(path)); !slices.Equal(names, []string{"state"}) {
		t.Errorf("files %v", names)
	}
}

// What crashes have left goes, and what somebody is writing, or has written by another name, stays.
func TestWrite_removesWhatCrashesHaveLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{
		"state.123.new": 2 * time.Hour, "state.124.new": time.Minute, "state.json.125.new": 2 * time.Hour,
		"state.x.new": 2 * time.Hour, "state.126": 2 * time.Hour, "estate.127.new": 2 * time.Hour,
	} {
		path, at := filepath.Join(dir, name), time.Now().Add(-age)
		if err := os.WriteFile(path, []byte(strconv.Itoa(len(name))), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(filepath.Join(dir, "state"), []byte("now")); err != nil {
		t.Fatal(err)
	}
	want := []string{"estate.127.new", "state", "state.124.new", "state.126", "state.json.125.new", "state.x.new"}
	if names := namesIn(t, dir); !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
}

// A file that cannot get its name leaves nothing.
func TestWrite_leavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "state", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "state"), []byte("now")); err == nil {
		t.Error("a directory was replaced")
	}
	if names := namesIn(t, dir); !slices.Equal(names, []string{"state"}) {
		t.Errorf("files %v", names)
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
