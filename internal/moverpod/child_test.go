package moverpod

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// childVariable makes the test program a mover. It has a childRun.
const childVariable = "VARVE_TEST_MOVER"

// patience is for what ends by itself, on the slowest machine too.
const patience = 5 * time.Minute

// childRun is what a mover that is a process of its own is given.
type childRun struct {
	Job     datamove.Job
	PodName string
	PodUID  types.UID
	API     string
	Files   Files
	// Flush, Progress and Interrupted are those of limits.
	Flush, Progress, Interrupted time.Duration
	// ListenAt is where it expects a launcher; "": nowhere.
	ListenAt string
	// DialAt is where the endpoints are; "": where their URLs say.
	DialAt string
}

// listenAt returns an Options.Listen.
func listenAt(address string) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
}

// dialAt returns an Options.DialEndpoint.
func dialAt(address string) func(context.Context, string, string) (net.Conn, error) { //nolint:unused // runChild calls it
	if address == "" {
		return nil
	}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// runChild is the process. It returns the exit code.
func runChild(text string) int { //nolint:unused // TestMain of the other tags calls it
	var c childRun
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	secrets := &repositoryaccess.Secrets{}
	err := Run(ctx, Options{
		Job: c.Job, PodName: c.PodName, PodUID: c.PodUID, Config: &rest.Config{Host: c.API}, Files: c.Files, Secrets: secrets,
		Log: slog.New(slog.NewTextHandler(secrets.Writer(os.Stderr), nil)), limits: limits{flush: c.Flush, progress: c.Progress, interrupted: c.Interrupted},
		Listen: listenAt(c.ListenAt), DialEndpoint: dialAt(c.DialAt),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// child is a mover that is a process of its own, with the limits that a pod has.
type child struct {
	*exec.Cmd

	ended chan struct{}
}

// startChild starts the pod's process. It dies with the test.
func (p *pod) startChild(t *testing.T) *child {
	t.Helper()
	text, err := json.Marshal(childRun{
		Job: p.Job, PodName: p.PodName, PodUID: p.PodUID, API: p.api.URL, Files: p.Files,
		Flush: p.limits.flush, Progress: p.limits.progress, Interrupted: p.limits.interrupted, ListenAt: p.listenAt, DialAt: p.dialAt,
	})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.CommandContext(context.Background(), exe), ended: make(chan struct{})}
	c.Env = append(os.Environ(), childVariable+"="+string(text))
	c.Stdout, c.Stderr = p.output, p.output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(c.ended); _ = c.Wait() }()
	t.Cleanup(c.kill)
	return c
}

// kill kills the process, as kill -9 does.
func (c *child) kill() {
	_ = c.Process.Kill()
	<-c.ended
}

// wait returns the exit code.
func (c *child) wait(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-c.ended:
		return c.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("it has not ended after %s", within)
		return -1
	}
}
