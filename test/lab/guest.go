package lab

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/guestagent"
)

// Guest gives access to the inside of a running instance through its agent.
type Guest struct {
	lab *Lab
	pod string
}

// Guest returns access to the inside of the machine's current instance.
func (l *Lab) Guest(ctx context.Context, vm string) (*Guest, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, vmi); err != nil {
		return nil, fmt.Errorf("guest of %s: %w", vm, err)
	}
	// KubeVirt's launcher pods have these labels, too.
	var pods corev1.PodList
	if err := l.List(ctx, &pods, client.InNamespace(l.Namespace),
		client.MatchingLabels{layout.LabelApp: "virt-launcher", layout.LabelCreatedBy: string(vmi.UID)}); err != nil {
		return nil, fmt.Errorf("launcher pod of %s: %w", vm, err)
	}
	// A guest that has moved leaves a pod behind for a moment.
	here := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return vmi.Status.NodeName != "" && p.Spec.NodeName != vmi.Status.NodeName
	})
	if len(here) != 1 {
		return nil, fmt.Errorf("instance %s with the UID %s has %d launcher pods", vm, vmi.UID, len(here))
	}
	return &Guest{lab: l, pod: here[0].Name}, nil
}

// Virsh runs a virsh command in the launcher pod.
func (g *Guest) Virsh(ctx context.Context, args ...string) (string, error) {
	return g.lab.Exec(ctx, g.pod, "compute", nil, append([]string{"virsh", "--quiet"}, args...)...)
}

// Launcher runs a command in the launcher pod.
func (g *Guest) Launcher(ctx context.Context, command ...string) (string, error) {
	return g.lab.Exec(ctx, g.pod, "compute", nil, command...)
}

// Pod returns the launcher pod's name.
func (g *Guest) Pod() string { return g.pod }

// agentShell is the beginning of a script in the launcher pod. Its function agent sends a request to the guest's
// agent. The launcher runs only one domain, so the script asks libvirt for the name.
const agentShell = `set -eu
	domain=$(virsh --quiet list --name | head -n 1)
	agent() { virsh --quiet qemu-agent-command --timeout 60 "$domain" "$1"; }
`

func (g *Guest) agent(ctx context.Context, command string) error {
	request, err := guestagent.Command(command, nil)
	if err == nil {
		_, err = g.Launcher(ctx, "sh", "-c", agentShell+`agent "$0"`, request)
	}
	if err != nil {
		return fmt.Errorf("guest agent: %s: %w", command, err)
	}
	return nil
}

// Run runs a shell script in the guest and returns its output. If the script fails, the error contains the output.
func (g *Guest) Run(ctx context.Context, script string) (string, error) {
	request, err := guestagent.Script("set -eu\n" + script)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	// One command in the pod waits for the end: on the node, starting a command costs more than polling the guest.
	const wait = agentShell + `
		started=$(agent "$0")
		pid=$(echo "$started" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
		while :; do
			status=$(agent "{\"execute\":\"guest-exec-status\",\"arguments\":{\"pid\":$pid}}")
			case $status in *'"exited":true'* | *'"exited": true'*) break ;; esac
			sleep 0.1
		done
		echo "$status"`
	out, err := g.Launcher(ctx, "sh", "-c", wait, request)
	if err == nil {
		out, err = guestagent.Output(out)
	}
	if err != nil {
		return out, fmt.Errorf("script in the guest: %s: %w", firstLine(script), err)
	}
	return out, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// Freeze freezes every mounted file system of the guest.
func (g *Guest) Freeze(ctx context.Context) error {
	return g.agent(ctx, "guest-fsfreeze-freeze")
}

// Thaw undoes Freeze.
func (g *Guest) Thaw(ctx context.Context) error { return g.agent(ctx, "guest-fsfreeze-thaw") }

// DiskSums returns the SHA-256 of the raw disk behind each volume. It is exact only while nothing writes to the disks.
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

// DirtyBytes returns how many bytes of the machine's disks have changed since the checkpoint of its tracker, in clusters of QEMU's bitmaps;
// 0 if there is no checkpoint.
func (g *Guest) DirtyBytes(ctx context.Context) (int64, error) {
	const script = `d=$(virsh -q list --name | head -n 1)
c=$(virsh -q checkpoint-list --name "$d" | head -n 1)
[ -n "$c" ] || { echo 0; exit; }
virsh -q checkpoint-dumpxml --size "$d" "$c" | grep -o "size='[0-9]*'" | tr -dc "0-9\n" | paste -sd+ | { read e; echo $((e)); }`
	out, err := g.Launcher(ctx, "bash", "-c", script)
	if err != nil {
		return 0, fmt.Errorf("dirty bytes of the machine: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}
