package main

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// around runs the tests. controlplane_test.go replaces it, to put a control plane around them.
var around = func(tests func() int) int { return tests() }

type suite struct{ *testing.M }

func (s suite) Run() int { return around(s.M.Run) }

// The scripts run this program, under both of its names.
func TestMain(m *testing.M) {
	storage.Register()
	testscript.Main(suite{m}, map[string]func(){"varve": main, "kubectl-varve": main})
}

func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Cmds: commands, Setup: func(env *testscript.Env) error {
		// No cluster: this kubeconfig does not exist.
		env.Setenv("KUBECONFIG", env.WorkDir+"/none")
		return nil
	}})
}

// commands are what scripts have besides testscript's own: `code N program args...` expects this exit code.
var commands = map[string]func(*testscript.TestScript, bool, []string){
	"code": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < 2 {
			ts.Fatalf("usage: code N program args...")
		}
		want, err := strconv.Atoi(args[0])
		ts.Check(err)
		got := 0
		var exit *exec.ExitError
		if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
			got = exit.ExitCode()
		} else if err != nil {
			ts.Fatalf("%v", err)
		}
		if got != want {
			ts.Fatalf("exit code %d, want %d", got, want)
		}
	},
}
