package domaintest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInnerArgsDropTheTestLogOnly(t *testing.T) {
	t.Parallel()
	args := []string{"-test.v", "-test.testlogfile=/tmp/x", "-test.run=A"}
	if diff := cmp.Diff([]string{"-test.v", "-test.run=A"}, innerArgs(args)); diff != "" {
		t.Error(diff)
	}
	if args[1] != "-test.testlogfile=/tmp/x" {
		t.Error("the input was changed")
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	if code, err := exitCode(exec.Command("sh", "-c", "exit 3").Run()); code != 3 || err != nil {
		t.Errorf("got %d, %v", code, err)
	}
	if _, err := exitCode(exec.Command("sh", "-c", "kill -9 $$").Run()); err == nil {
		t.Error("a process that died of a signal has no exit code")
	}
	if _, err := exitCode(exec.Command("/does/not/exist").Run()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestRepositoryHasTheRecipeOfItsRoot(t *testing.T) {
	t.Parallel()
	repo, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(repo, "internal/domain/domaintest/run_test.go")); err != nil {
		t.Error(err)
	}
}
