package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// changing is what differs between two runs of the same tests: times, addresses and goroutines.
var changing = regexp.MustCompile(`\d+\.\d+s|\(\ds\)|0x[0-9a-f]+|goroutine \d+`)

// sample returns `go test` on packages of testdata/sample, with what it prints.
func sample(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.CommandContext(t.Context(), "go", append([]string{"test"}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "testdata/sample", stdout, stderr
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	return cmd, stdout, stderr
}

// collected runs the same through collect.
func collected(t *testing.T, args ...string) (stdout, stderr string, code int, file string) {
	t.Helper()
	var out bytes.Buffer
	dir := t.TempDir()
	errs, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	file = filepath.Join(dir, "times", "test-sample.tsv")
	command := append([]string{"collect", file, "env", "GOFLAGS=", "GOWORK=off", "go", "-C", "testdata/sample", "test", "-json"}, args...)
	code, err = run(t.Context(), command, "", &out, errs)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(errs.Name())
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), string(text), code, file
}

func TestCollect_printsWhatGoTestPrints(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"passes", "fails", "panics", "hangs", "broken", "vetted", "empty"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"-count=1", "./" + name}
			if name == "hangs" {
				args = append([]string{"-timeout=1s"}, args...)
			}
			cmd, stdout, stderr := sample(t, args...)
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			gotOut, gotErr, code, _ := collected(t, args...)
			if want := cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			for _, c := range []struct{ what, got, want string }{{"output", gotOut, stdout.String()}, {"error", gotErr, stderr.String()}} {
				if diff := cmp.Diff(unchanging(c.want), unchanging(c.got)); diff != "" {
					t.Errorf("standard %s (-want +got):\n%s", c.what, diff)
				}
			}
		})
	}
}

func unchanging(text string) string { return changing.ReplaceAllString(text, "#") }

// TestCollect_showsUnfinishedTests is about a package that ends before its tests: `go test` prints nothing of them.
func TestCollect_showsUnfinishedTests(t *testing.T) {
	t.Parallel()
	got, _, code, _ := collected(t, "-count=1", "./exits")
	if want := "=== NAME  TestExits\n    exits_test.go:9: before\nFAIL\tsample/exits\t#\nFAIL\n"; unchanging(got) != want || code != 1 {
		t.Errorf("exit code %d, got %q, want %q", code, got, want)
	}
}

func TestCollect_keepsPackagesApartWhenVerbose(t *testing.T) {
	t.Parallel()
	args := []string{"-count=1", "-v", "-p=3", "./passes", "./fails", "./panics"}
	cmd, stdout, _ := sample(t, args...)
	_ = cmd.Run() // fails, as it should
	got, _, _, _ := collected(t, args...)
	if diff := cmp.Diff(results(stdout.String()), results(got)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, line := range []string{"    passes_test.go:10: not printed\n", "printed to standard error\n", "=== NAME  TestFails\n    fails_test.go:24: after the subtests\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("no %q in:\n%s", line, got)
		}
	}
	passes, fails := strings.Index(got, "ok  \tsample/passes"), strings.Index(got, "FAIL\tsample/fails")
	if first := min(passes, fails); strings.Contains(got[:first], "=== RUN   TestFails\n") == strings.Contains(got[:first], "=== RUN   TestSequential\n") {
		t.Errorf("two packages are mixed:\n%s", got)
	}
}

// results are the lines that say how tests and packages ended, in the order of their text.
func results(output string) []string {
	lines := regexp.MustCompile(`(?m)^\s*(?:--- .*|ok  .*|FAIL.*)$`).FindAllString(unchanging(output), -1)
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	slices.Sort(lines)
	return lines
}

func TestCollect_recordsTimes(t *testing.T) {
	t.Parallel()
	_, _, _, file := collected(t, "-count=1", "./passes", "./empty")
	got, err := readTier(filepath.Dir(file), "test-sample")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]record{}
	for _, r := range got.packages {
		byName[r.pkg] = r
	}
	if r := byName["sample/empty"]; r.result != "skip" {
		t.Errorf("empty: %+v", r)
	}
	passes := byName["sample/passes"]
	if passes.result != "pass" || passes.seconds < 0.07 {
		t.Errorf("passes: %+v", passes)
	}
	var apart []string
	for _, one := range passes.apart() {
		apart = append(apart, one.name)
	}
	slices.Sort(apart)
	// The subtest of TestSequential is part of its parent's time.
	if want := []string{"TestParallel", "TestParallel/subtest", "TestPasses", "TestSequential"}; !slices.Equal(apart, want) {
		t.Errorf("apart: %v, want %v", apart, want)
	}
}

func TestCollect_knowsCachedResults(t *testing.T) {
	t.Parallel()
	collected(t, "./passes")
	out, _, _, file := collected(t, "./passes")
	got, err := readTier(filepath.Dir(file), "test-sample")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "(cached)") || len(got.packages) != 1 || got.packages[0].result != "cached" {
		t.Errorf("%s%+v", out, got)
	}
}

// The end of a long log says why tests failed.
func TestCollect_notesWhatFailedTestsLoggedFirst(t *testing.T) {
	t.Parallel()
	_, _, _, file := collected(t, "-count=1", "./fails", "./passes")
	text, err := os.ReadFile(failuresOf(file))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantFailures, string(text)); diff != "" {
		t.Error(diff)
	}
	_, _, _, file = collected(t, "-count=1", "./passes")
	if _, err := os.Stat(failuresOf(file)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of failures without one: %v", err)
	}
}

func TestCollect_failsWithItsCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "times.tsv")
	for _, c := range []struct {
		command []string
		code    int
	}{
		{[]string{"sh", "-c", "echo text that is no event; exit 3"}, 3},
		{[]string{"sh", "-c", "kill -9 $$"}, 1},
		{[]string{"/nonexistent"}, 1},
	} {
		code, err := run(t.Context(), append([]string{"collect", file}, c.command...), "", &bytes.Buffer{}, os.Stderr)
		if code != c.code {
			t.Errorf("%v: exit code %d (%v), want %d", c.command, code, err, c.code)
		}
	}
}

// TestCollect_showsWhatWasKilled is about a `go test` that dies before it has said how its packages ended.
func TestCollect_showsWhatWasKilled(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPrinter(&out, &bytes.Buffer{}, false)
	events := `{"Action":"start","Package":"a"}
{"Action":"output","Package":"a","Test":"TestA","Output":"printed\n"}
`
	if err := p.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if want := "printed\nFAIL\n"; out.String() != want || p.records[0].result != "fail" {
		t.Errorf("got %q, want %q; %+v", out.String(), want, p.records)
	}
}

func TestVerbose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command, goflags string
		want             bool
	}{
		{"go test -json ./...", "-trimpath", false},
		{"go test -json -v ./...", "", true},
		{"go test -json ./...", "-trimpath -v=true", true},
		{"go test -json ./v", "-buildvcs=false", false},
		{"go test -json ./... -args -v", "", false},
	} {
		if got := verbose(strings.Fields(c.command), c.goflags); got != c.want {
			t.Errorf("%s with %q: %v", c.command, c.goflags, got)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"test-unit.tsv": "package\tpass\tgithub.com/varvebackup/varve/internal/a\t3.00\n" +
			"test\tpass\tTestFast\t0.10\ntest\tpass\tTestSlow/part\t2.80\ntest\tpass\tTestSlow\t2.90\n" +
			"package\tcached\tgithub.com/varvebackup/varve/internal/b\t90.00\ntest\tpass\tTestCached\t90.00\n" +
			"package\tskip\tgithub.com/varvebackup/varve/internal/c\t0.00\nseconds\t4\n",
		"test-box.tsv": "relied\ttest-box: passed before\nseconds\t1\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if code, err := run(t.Context(), []string{"report", dir, "test-unit", "test-box"}, "", &out, os.Stderr); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	const want = `
TIER       SECONDS  TESTS  PACKAGES
test-unit  4        3      2, 1 of them cached
test-box   1               did not run: test-box: passed before
sum        5

SLOWEST TESTS  SECONDS  PACKAGE     TIER
TestSlow       2.9      internal/a  test-unit
TestFast       0.1      internal/a  test-unit
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

const wantFailures = `sample/fails TestFails/subtest/of_a_subtest
    fails_test.go:20: first line
sample/fails TestFails/subtest
    fails_test.go:19: in the subtest
sample/fails TestFails/a/name/with/slashes
    fails_test.go:22: wrong
sample/fails TestFails
    fails_test.go:17: first line
    fails_test.go:24: after the subtests
sample/fails TestParallel/1
    fails_test.go:34: begins
    fails_test.go:37: 1 is wrong
`
