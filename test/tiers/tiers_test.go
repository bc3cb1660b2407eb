package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/verdict"
)

// outcome is what one tier and its conclusion said.
type outcome struct {
	dir        string
	code       int    // of the tier
	ran        string // what the tier printed
	passed     bool
	conclusion string
}

// runSample runs packages of testdata/sample as a tier of `make test`, and concludes.
func runSample(t *testing.T, args ...string) outcome {
	t.Helper()
	o := outcome{dir: filepath.Join(t.TempDir(), "build", "test-times")}
	var out bytes.Buffer
	command := append([]string{"env", "GOFLAGS=", "GOWORK=off", "TIERS_MARKER=" + filepath.Join(t.TempDir(), "marker"), "go", "-C", "testdata/sample", "test", "-json"}, args...)
	r := tierRun{file: filepath.Join(o.dir, "test-sample.tsv"), command: command, again: true, stdout: &out, stderr: os.Stderr}
	var err error
	if o.code, err = r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.ran = out.String()
	out.Reset()
	if err := appendText(filepath.Join(o.dir, "test-sample.tsv"), "seconds\t1\n"); err != nil {
		t.Fatal(err)
	}
	if o.passed, err = conclude(t.Context(), &out, os.Stderr, o.dir, []string{"test-sample"}); err != nil {
		t.Fatal(err)
	}
	o.conclusion = out.String()
	return o
}

// verdicts are the lines that say what is flaky and what failed, and the words of failures, without loads and paths.
func (o outcome) verdicts() (lines []string) {
	from := strings.Index(o.conclusion, "\nFLAKY ")
	if from < 0 {
		from = strings.Index(o.conclusion, "\nFAILED ")
	}
	if from < 0 {
		return nil
	}
	text := regexp.MustCompile(` \(load [0-9.]+; its output: \S+\)`).ReplaceAllString(o.conclusion[from+1:], "")
	return strings.Split(strings.TrimSpace(text), "\n")
}

func TestConclude(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		code   int // of the tier
		passed bool
		want   []string
		again  int // how often tests ran again
	}{
		"passes":              {[]string{"./passes", "./empty"}, 0, true, nil, 0},
		"fails once":          {[]string{"./flaky", "./passes"}, 0, true, []string{"FLAKY sample/flaky.TestOnce/part_of_it"}, 1},
		"fails always, alone": {[]string{"-run=TestParallel", "./fails"}, 0, false, []string{"FAILED sample/fails.TestParallel/1", "    fails_test.go:34: begins", "    fails_test.go:37: 1 is wrong"}, 2},
		"wrong data": {[]string{"-run=TestData|TestGolden", "./wrong", "./flaky"}, 1, false, []string{
			"FAILED sample/wrong.TestGolden: not run again for a golden file",
			"    wrong_test.go:11: GOLDEN FILE: testdata/v1.json (-golden +got): …",
			"FAILED sample/wrong.TestData/restored: not run again for wrong data",
			"    wrong_test.go:8: WRONG DATA: disk root: 1 byte differs",
		}, 0},
		"wrong data in the parent": {[]string{"-run=TestParent", "./wrong"}, 1, false, []string{
			"FAILED sample/wrong.TestParent/subtest: not run again for wrong data",
			"    wrong_test.go:15: WRONG DATA: the restored disk",
		}, 0},
		"panics": {[]string{"./panics"}, 1, false, []string{"FAILED sample/panics.TestPanics: not run again for a panic", "    panics_test.go:6: before"}, 0},
		"hangs":  {[]string{"-timeout=1s", "./hangs"}, 1, false, nil, 0},
		"leaks": {[]string{"./leaks"}, 1, false, []string{
			"FAILED sample/leaks: not run again for " + packageFailed, "    PASS",
			"    goleak: Errors on successful test run: found unexpected goroutines:", "    FAIL\tsample/leaks\t#",
		}, 0},
		"more than are run again": {[]string{"./many"}, 0, false, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := runSample(t, append([]string{"-count=1"}, c.args...)...)
			if o.code != c.code || o.passed != c.passed {
				t.Errorf("exit code %d, passed %v:\n%s\n%s", o.code, o.passed, o.ran, o.conclusion)
			}
			got := o.verdicts()
			for i := range got {
				got[i] = regexp.MustCompile(`\d+\.\d+s$`).ReplaceAllString(got[i], "#")
			}
			if diff := cmp.Diff(c.want, got); c.want != nil && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if again := strings.Count(o.conclusion, " runs again, alone: "); again != c.again {
				t.Errorf("tests ran again %d times, want %d:\n%s", again, c.again, o.conclusion)
			}
		})
	}
}

// A package that does not build has no tests to run again.
func TestConclude_doesNotBuild(t *testing.T) {
	t.Parallel()
	o := runSample(t, "-count=1", "./broken")
	if o.code == 0 || o.passed || !strings.Contains(o.conclusion, "FAILED sample/broken: not run again for "+packageFailed) {
		t.Errorf("exit code %d, passed %v:\n%s\n%s", o.code, o.passed, o.ran, o.conclusion)
	}
}

// A limit of go test ends a package in the middle of its tests.
func TestConclude_saysWhichTestHung(t *testing.T) {
	t.Parallel()
	o := runSample(t, "-count=1", "-timeout=1s", "./hangs")
	for _, want := range []string{"    panic: test timed out after 1s\n", "FAILED sample/hangs.TestHangs/subtest: not run again for a panic"} {
		if !strings.Contains(o.conclusion, want) {
			t.Errorf("no %q in:\n%s", want, o.conclusion)
		}
	}
}

// What a flaky test said when it failed is kept.
func TestConclude_keepsTheFirstOutput(t *testing.T) {
	t.Parallel()
	o := runSample(t, "-count=1", "./flaky")
	text, err := os.ReadFile(filepath.Join(o.dir, "..", "test", "flaky", "sample_flaky.TestOnce_part_of_it.txt"))
	if err != nil || !strings.Contains(string(text), "fails once") || !strings.HasPrefix(string(text), "load ") {
		t.Errorf("%s %v", text, err)
	}
}

// A developer who runs one tier sees its exit code.
func TestRun_failsWithItsCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command []string
		again   bool
		code    int
	}{
		{[]string{"sh", "-c", "echo text that is no event; exit 3"}, false, 3},
		{[]string{"sh", "-c", "echo text that is no event; exit 3"}, true, 3},
		{[]string{"sh", "-c", "kill -9 $$"}, true, 1},
		{[]string{"env", "GOFLAGS=", "GOWORK=off", "go", "-C", "testdata/sample", "test", "-json", "-run=TestParallel", "./fails"}, false, 1},
	} {
		r := tierRun{file: filepath.Join(t.TempDir(), "times", "times.tsv"), command: c.command, again: c.again, stdout: &bytes.Buffer{}, stderr: os.Stderr}
		code, err := r.run(t.Context())
		if err != nil || code != c.code {
			t.Errorf("%v: exit code %d (%v), want %d", c.command, code, err, c.code)
		}
		if failures, err := readFailures(failuresOf(r.file)); err != nil || len(failures) != 1 {
			t.Errorf("%v: failures %+v, %v", c.command, failures, err)
		}
	}
}

// What an interrupt ended has not failed, and is not run again.
func TestRun_isInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	// The output of the tests comes first, and ends the context.
	out := writerFunc(func([]byte) { cancel() })
	command := []string{"sh", "-c", "echo text that is no event; exec sleep 600"}
	r := tierRun{file: filepath.Join(t.TempDir(), "times", "times.tsv"), command: command, again: true, stdout: out, stderr: os.Stderr}
	if code, err := r.run(ctx); code == 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("exit code %d, %v", code, err)
	}
	if failures, err := readFailures(failuresOf(r.file)); err != nil || len(failures) > 0 {
		t.Errorf("failures %+v, %v", failures, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// The marks that the sample has as text are those of the package that tests use.
func TestMarks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/sample/wrong/wrong_test.go")
	if err != nil || !strings.Contains(string(text), `"`+verdict.Mark) || !strings.Contains(string(text), `"`+verdict.GoldenMark) {
		t.Errorf("the sample has other marks: %v", err)
	}
	for line, want := range map[string]string{
		"    restore_test.go:12: " + verdict.Error("disk root").Error(): wrongData,
		"WARNING: DATA RACE": "a data race",
		"    set_test.go:20: [rapid] failed after 17 tests: [1 2] is not [1]": "a property that a seed breaks",
		"        FAIL: testdata/x.txt:12: got.raw and want.raw differ":        "files that a script compares",
		"        Content mismatch at offset 512!":                             wrongData,
		"Pattern verification failed at offset 0, 512 bytes":                  wrongData,
		"web.raw restored.raw differ: byte 513, line 2":                       wrongData,
		"panic: runtime error":                                                "a panic",
		"    a_test.go:1: the launcher says panic: boom":                      "",
	} {
		if got := whyFinal([]string{"before", line}); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestCommandAlone(t *testing.T) {
	t.Parallel()
	f := failure{
		Package: "github.com/varvebackup/varve/internal/a", Test: "TestA/with_(parts)", Dir: "/src",
		Command: []string{"go", "test", "-json", "-tags", "x", "-p", "2", "-run", "^(TestA)$", "./internal/a", "./internal/b"},
	}
	got, err := f.commandAlone()
	want := []string{
		"env", "-C", "/src", "go", "test", "-json", "-tags", "x", "-p", "2", "-run", "^(TestA)$",
		"-count=1", "-run", `^TestA$/^with_\(parts\)$`, "github.com/varvebackup/varve/internal/a",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v", got, err)
	}
	f.Command = f.Command[:9]
	if got, err := f.commandAlone(); err == nil {
		t.Errorf("without packages: %q", got)
	}
}

func TestRun_recordsTimes(t *testing.T) {
	t.Parallel()
	o := runSample(t, "-count=1", "./passes", "./empty")
	got, err := readTier(o.dir, "test-sample")
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

func TestRun_knowsCachedResults(t *testing.T) {
	t.Parallel()
	runSample(t, "./passes")
	o := runSample(t, "./passes")
	got, err := readTier(o.dir, "test-sample")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(o.ran, "(cached)") || len(got.packages) != 1 || got.packages[0].result != "cached" {
		t.Errorf("%s%+v", o.ran, got)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"test-unit.tsv": "package\tpass\tgithub.com/varvebackup/varve/internal/a\t3.00\n" +
			"test\tpass\tTestFast\t0.10\ntest\tpass\tTestSlow/part\t2.80\ntest\tpass\tTestSlow\t2.90\n" +
			"package\tcached\tgithub.com/varvebackup/varve/internal/b\t90.00\ntest\tpass\tTestCached\t90.00\n" +
			"package\tskip\tgithub.com/varvebackup/varve/internal/c\t0.00\nrelied\t./internal/d passed before\nseconds\t4\n",
		"test-box.tsv": "relied\ttest-box: passed before\nseconds\t1\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if code, err := run(t.Context(), []string{"conclude", dir, "test-unit", "test-box"}, &out, os.Stderr); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	const want = `
TIER       SECONDS  TESTS  PACKAGES
test-unit  4        3      2, 1 of them cached; did not run: ./internal/d passed before
test-box   1               did not run: test-box: passed before
sum        5

SLOWEST TESTS  SECONDS  PACKAGE     TIER
TestSlow       2.9      internal/a  test-unit
TestFast       0.1      internal/a  test-unit
4 passed, 0 failed
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
