package verdict

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorder keeps what a test would fail with.
type recorder struct{ said []string }

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = append(r.said, "fatal: "+fmt.Sprintf(format, args...))
}

func TestMarks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	if err := os.WriteFile(one, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		do   func(tb TB)
		want []string
	}{
		"Errorf": {func(tb TB) { Errorf(tb, "disk %s, %d%%", "root", 5) }, []string{Mark + "disk root, 5%"}},
		"Fatalf": {func(tb TB) { Fatalf(tb, "disk %s, %d%%", "root", 5) }, []string{"fatal: " + Mark + "disk root, 5%"}},
		"JudgeErrorf": {
			func(tb TB) { JudgeErrorf(tb, true, "%d%%", 5); JudgeErrorf(tb, false, "%d%%", 6) }, []string{Mark + "5%", "6%"},
		},
		"JudgeFatalf": {
			func(tb TB) { JudgeFatalf(tb, true, "%d%%", 5); JudgeFatalf(tb, false, "%d%%", 6) }, []string{"fatal: " + Mark + "5%", "fatal: 6%"},
		},
		"Error": {func(tb TB) { tb.Errorf("%v", Error("disk %s: %w", "root", os.ErrExist)) }, []string{Mark + "disk root: file already exists"}},
	} {
		var r recorder
		if c.do(&r); !slices.Equal(r.said, c.want) {
			t.Errorf("%s: %q, want %q", name, r.said, c.want)
		}
	}
	var r recorder
	if Golden(&r, one, []byte("abc")); len(r.said) > 0 {
		t.Errorf("the golden file itself: %q", r.said)
	}
	if Golden(&r, one, []byte("abd")); len(r.said) != 1 || !strings.HasPrefix(r.said[0], GoldenMark+one) {
		t.Errorf("another one: %q", r.said)
	}
	if err := Error("disk: %w", os.ErrExist); !errors.Is(err, os.ErrExist) {
		t.Errorf("%v hides its cause", err)
	}
}

func TestDiffer(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]bool{"exit 1": true, "exit 2": false, "exit 0": false} {
		err := exec.CommandContext(t.Context(), "sh", "-c", script).Run()
		if err != nil {
			err = fmt.Errorf("cmp: %w", err)
		}
		if Differ(err) != want {
			t.Errorf("%s: %v", script, !want)
		}
	}
}
