package lab

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// Guest is the inside of a running instance, reached through its agent.
type Guest struct {
	lab *Lab
	pod string
}

// Guest returns the inside of the machine's present instance.
func (l *Lab) Guest(ctx context.Context, vm string) (*Guest, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, vmi); err != nil {
		return nil, fmt.Errorf("guest of %s: %w", vm, err)
	}
	return &Guest{lab: l, pod: layout.LauncherPod(vm, vmi.UID)}, nil
}

// Virsh runs a virsh command in the launcher pod.
func (g *Guest) Virsh(ctx context.Context, args ...string) (string, error) {
	return g.lab.Exec(ctx, g.pod, "compute", nil, append([]string{"virsh", "--quiet", "--connect", "qemu:///system"}, args...)...)
}

// Launcher runs a command in the launcher pod.
func (g *Guest) Launcher(ctx context.Context, command ...string) (string, error) {
	return g.lab.Exec(ctx, g.pod, "compute", nil, command...)
}

// Pod is the launcher pod's name.
func (g *Guest) Pod() string { return g.pod }

func (g *Guest) agent(ctx context.Context, command string, arguments, result any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	// The launcher runs one domain; its name is libvirt's business.
	const script = `exec virsh --quiet --connect qemu:///system qemu-agent-command --timeout 60 "$(virsh --quiet --connect qemu:///system list --name | head -n 1)" "$0"`
	out, err := g.lab.Exec(ctx, g.pod, "compute", nil, "sh", "-c", script, string(data))
	if err != nil {
		return fmt.Errorf("guest agent: %s: %w", command, err)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal([]byte(out), result); err != nil {
		return fmt.Errorf("guest agent: %s answered %q: %w", command, out, err)
	}
	return nil
}

// Run runs a shell script in the guest and returns what it printed. A script that fails is an error with its output.
func (g *Guest) Run(ctx context.Context, script string) (string, error) {
	var started struct {
		Return struct {
			PID int `json:"pid"`
		} `json:"return"`
	}
	err := g.agent(ctx, "guest-exec", map[string]any{
		"path": "/bin/sh", "arg": []string{"-euc", script}, "capture-output": true,
	}, &started)
	if err != nil {
		return "", err
	}
	var status struct {
		Return struct {
			Exited   bool   `json:"exited"`
			ExitCode int    `json:"exitcode"`
			Signal   int    `json:"signal"`
			Out      string `json:"out-data"`
			Err      string `json:"err-data"`
		} `json:"return"`
	}
	err = Wait(ctx, 10*time.Minute, "a script in the guest", func(ctx context.Context) (bool, string, error) {
		err := g.agent(ctx, "guest-exec-status", map[string]any{"pid": started.Return.PID}, &status)
		return status.Return.Exited, firstLine(script), err
	})
	if err != nil {
		return "", err
	}
	stdout, err := base64.StdEncoding.DecodeString(status.Return.Out)
	if err != nil {
		return "", fmt.Errorf("guest agent: output of a script: %w", err)
	}
	if status.Return.ExitCode != 0 || status.Return.Signal != 0 {
		stderr, _ := base64.StdEncoding.DecodeString(status.Return.Err)
		return string(stdout), fmt.Errorf("script in the guest: exit code %d, signal %d: %s\n%s%s",
			status.Return.ExitCode, status.Return.Signal, firstLine(script), stdout, stderr)
	}
	return string(stdout), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// Freeze freezes every mounted file system of the guest.
func (g *Guest) Freeze(ctx context.Context) error {
	return g.agent(ctx, "guest-fsfreeze-freeze", nil, nil)
}

// Thaw undoes Freeze.
func (g *Guest) Thaw(ctx context.Context) error { return g.agent(ctx, "guest-fsfreeze-thaw", nil, nil) }

// DiskSums returns the SHA-256 of the raw disk behind each volume. It is exact only while nothing writes.
func (g *Guest) DiskSums(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) (map[string]string, error) {
	sums := make([]string, len(vmi.Spec.Volumes))
	group, ctx := errgroup.WithContext(ctx)
	for i, v := range vmi.Spec.Volumes {
		group.Go(func() error {
			script := fmt.Sprintf(`f=%s; [ -e "$f" ] || f=%s; sha256sum "$f" | cut -d' ' -f1`, layout.DiskFile(v.Name), layout.DiskDevice(v.Name))
			out, err := g.Launcher(ctx, "sh", "-euc", script)
			if err != nil {
				return fmt.Errorf("hash disk %s of %s: %w", v.Name, vmi.Name, err)
			}
			sums[i] = strings.TrimSpace(out)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for i, v := range vmi.Spec.Volumes {
		byName[v.Name] = sums[i]
	}
	return byName, nil
}
