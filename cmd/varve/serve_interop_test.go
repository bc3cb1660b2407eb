//go:build nbd_interop

package main

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/authority"
)

// Scripts about exports have everything that those about repositories have, the certificates of an authority in $TLS
// and of another one in $STRANGER, and these commands:
//
//	backup VAR ARGS...          runs `varve disk backup ARGS`; $VAR is the restore point's ID
//	serve NAME ARGS...          runs `varve disk serve ARGS` until it listens; $NAME is the address, $NAME_PORT its port
//	[!] end NAME TERM|INT|KILL  sends the signal, and expects exit code 0; standard error is what the server said
func TestServe(t *testing.T) {
	t.Parallel()
	ours, stranger := authority.New(t).Files(t), authority.New(t).Files(t)
	all := maps.Clone(commands)
	all["backup"], all["serve"], all["end"] = backupCommand, serveCommand, endCommand
	testscript.Run(t, testscript.Params{Dir: "testdata/serve", Cmds: all, Setup: func(env *testscript.Env) error {
		env.Values[serversKey{}] = map[string]*diskServer{}
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		env.Setenv("TLS", ours)
		env.Setenv("STRANGER", stranger)
		return os.WriteFile(filepath.Join(env.WorkDir, "password"), []byte("secret of this test\n"), 0o600)
	}})
}

func backupCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: backup VAR NAME DISK=FILE...")
	}
	ts.Check(ts.Exec("varve", append([]string{"disk", "backup", "-o", "name", "--progress", "none"}, args[1:]...)...))
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// serversKey is the key of a script's servers, which are kept by name.
type serversKey struct{}

func scriptServers(ts *testscript.TestScript) map[string]*diskServer {
	servers, _ := ts.Value(serversKey{}).(map[string]*diskServer)
	return servers
}

func serveCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: serve NAME ARGS...")
	}
	var env []string
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "VARVE_PASSWORD"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	s, err := startServer(ts.MkAbs("."), env, args[1:]...)
	ts.Check(err)
	scriptServers(ts)[args[0]] = s
	ts.Setenv(args[0], s.address)
	if _, port, err := net.SplitHostPort(s.address); err == nil {
		ts.Setenv(args[0]+"_PORT", port)
	}
	ts.Defer(func() { _ = s.cmd.Process.Kill() }) // it may already have ended
}

func endCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || scriptServers(ts)[args[0]] == nil {
		ts.Fatalf("usage: [!] end NAME TERM|INT|KILL, of what serve has begun")
	}
	s := scriptServers(ts)[args[0]]
	err := s.end(unix.SignalNum("SIG" + args[1]))
	_, _ = ts.Stderr().Write([]byte(s.text())) // a buffer
	if (err != nil) != neg {
		ts.Fatalf("it ended with %v, and has said\n%s", err, s.text())
	}
}
