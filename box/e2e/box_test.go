//go:build box

// Package e2e tests the box as its users see it: through its command line, the Kubernetes API and the host. It needs
// root and what `make kube box` builds; `make test-box` runs it. The box under test has its own directory, bridge and
// network, and does not disturb a running box.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/varvebackup/varve/box/internal/imagetar"
	"github.com/varvebackup/varve/box/internal/layout"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

const probeImage = "box.varvebackup.io/probe:1"

var (
	dir    = layout.Box(cmp.Or(os.Getenv("VARVE_BOX_TEST_DIR"), "/var/lib/varve-box-test"))
	bridge = cmp.Or(os.Getenv("VARVE_BOX_TEST_BRIDGE"), "vbtest0")

	bin    string // the directory of the built programs
	client kubernetes.Interface
	// snapshots is a client of the VolumeSnapshot API.
	snapshots snapshotv1.SnapshotV1Interface
)

// The tests share one box and run in the order of the file names and of the lines in them. Each leaves the box healthy.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := setup(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code := m.Run()
	if out, err := run("down"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: remove the box:", err, out)
		code = 1
	}
	os.Exit(code)
}

func setup() error {
	if os.Getuid() != 0 {
		return fmt.Errorf("these tests need root")
	}
	var err error
	if bin, err = filepath.Abs("../../build/bin"); err != nil {
		return err
	}
	if out, err := run("down"); err != nil { // what an interrupted run has left
		return fmt.Errorf("%w: %s", err, out)
	}
	return up("--nodes=1")
}

// up brings up the box under test, and connects client to it.
func up(args ...string) error {
	if out, err := run(append([]string{"up", "--bridge", bridge}, args...)...); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return err
	}
	if client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	snapshots, err = snapshotv1.NewForConfig(cfg)
	return err
}

// run runs the box's command line on the box under test.
func run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "box"), append([]string{"--dir", string(dir)}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("box %s: %w", strings.Join(args, " "), err)
	}
	return string(out), err
}

// mustRun is run, but a failure fails the test.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// mustUp is up, but a failure fails the test.
func mustUp(t *testing.T, args ...string) {
	t.Helper()
	if err := up(args...); err != nil {
		t.Fatal(err)
	}
}

// loadProbe builds the tests' image, with additional files if given, and loads it.
func loadProbe(t *testing.T, more ...imagetar.File) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	files := append([]imagetar.File{{Path: "probe", Data: data, Mode: 0o755}}, more...)
	image, err := imagetar.Build(probeImage, []string{"/probe"}, files)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "probe.tar")
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	return mustRun(t, "load", file)
}

// kubectl runs the box's own kubectl.
func kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, dir.Program("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+dir.Kubeconfig())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// eventually polls until check succeeds, for at most two minutes: the machine may be busy with other work.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// state is the part of the box's state file that the tests use.
type state struct {
	Nodes []struct {
		Init struct {
			PID int `json:"pid"`
		} `json:"init"`
	} `json:"nodes"`
	Plan struct {
		Base string `json:"base"`
	} `json:"plan"`
}

func readState(t *testing.T) state {
	t.Helper()
	var s state
	data, err := os.ReadFile(dir.State())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}
