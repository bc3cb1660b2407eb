package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/s3"
)

// bench is one run of the benchmark. Each part has a machine of its own, one after the other.
type bench struct {
	*lab.Lab
	*options

	watcher client.WithWatch
	store   s3.Endpoint
	log     io.Writer
	// count numbers what is made.
	count int
	// qemu is the process ID of the machine's QEMU.
	qemu int
	// contents describes the disks, and hypervisor is the versions of libvirt and QEMU.
	contents   []string
	hypervisor []string
}

func openBench(ctx context.Context, o *options) (*bench, error) {
	b := &bench{options: o, log: os.Stderr}
	var err error
	if b.store, _, err = s3.OnBox(o.boxDir); err != nil {
		return nil, err
	}
	if err := b.buildTools(ctx); err != nil {
		return nil, err
	}
	if b.Lab, err = lab.OpenFresh(ctx, o.kubeconfig, o.build, namespace, 5*time.Minute); err != nil {
		return nil, err
	}
	scheme, err := lab.Scheme()
	if err != nil {
		return nil, err
	}
	b.watcher, err = client.NewWithWatch(b.Config, client.Options{Scheme: scheme})
	return b, err
}

// close removes everything that the run has made.
func (b *bench) close(ctx context.Context) error {
	return errors.Join(b.DeleteUploads(ctx, 3*time.Minute), b.DeleteNamespace(ctx, 5*time.Minute))
}

// The programs that run in toolboxes.
const (
	diskWriter = "diskwriter"
	veleroLike = "velerolike"
)

func (b *bench) toolFile(name string) string { return filepath.Join(b.build, "bench", name) }

// buildTools builds the programs for pods, which have no shared libraries for them.
func (b *bench) buildTools(ctx context.Context) error {
	for _, name := range []string{diskWriter, veleroLike} {
		out, err := filepath.Abs(b.toolFile(name))
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "./bench/move/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, said)
		}
	}
	return nil
}

// toolbox starts a toolbox with the claims and with a program in /tmp.
func (b *bench) toolbox(ctx context.Context, name, program string, claims ...string) (_ *lab.Toolbox, err error) {
	t, err := b.Toolbox(ctx, name, claims...)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(b.toolFile(program))
	if err == nil {
		_, err = t.RunWithInput(ctx, fmt.Sprintf("cat >/tmp/%[1]s; chmod 755 /tmp/%[1]s", program), f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, errors.Join(err, t.Close(context.WithoutCancel(ctx)))
	}
	return t, nil
}

// scratch is the claim for what the guest overwrites while its disks are read.
const scratch = "scratch"

// bootMachine makes a machine with disks, each of which a command of diskwriter fills, and waits for its guest. A %s in the command is the file.
func (b *bench) bootMachine(ctx context.Context, fill func(i int) string, disks ...lab.Disk) error {
	if err := b.CreateClaims(ctx, vmName, disks...); err != nil {
		return err
	}
	var claims []string
	for _, d := range disks {
		claims = append(claims, lab.ClaimName(vmName, d.Name))
	}
	t, err := b.toolbox(ctx, "fill", diskWriter, claims...)
	if err != nil {
		return err
	}
	for i := range disks {
		if _, err = t.Run(ctx, "/tmp/"+diskWriter+" "+fmt.Sprintf(fill(i), imageOn(claims[i]))); err != nil {
			break
		}
	}
	if err := errors.Join(err, t.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if err := b.Claim(ctx, scratch, 2*gib, corev1.PersistentVolumeFilesystem); err != nil {
		return err
	}
	if err := b.StartTracked(ctx, vmName, lab.TestSystem, 5*time.Minute, disks...); err != nil {
		return err
	}
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	if b.qemu, err = findQEMU(); err != nil {
		return err
	}
	out, err := g.Virsh(ctx, "version")
	b.hypervisor = strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	return err
}

// imageOn returns where a toolbox has the raw disk on a Filesystem claim.
func imageOn(claim string) string { return "/mnt/" + claim + "/disk.img" }

// deleteMachine deletes the machine and the claims of its disks.
func (b *bench) deleteMachine(ctx context.Context, disks ...lab.Disk) error {
	gone := []client.Object{machineNamed(vmName)}
	for _, d := range disks {
		gone = append(gone, claimNamed(lab.ClaimName(vmName, d.Name)))
	}
	for _, o := range append(gone, claimNamed(scratch)) {
		o.SetNamespace(namespace)
		if err := client.IgnoreNotFound(b.Delete(ctx, o)); err != nil {
			return err
		}
		if err := b.WaitGone(ctx, o, 2*time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func machineNamed(name string) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = namespace, name
	return vm
}

func claimNamed(name string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name = namespace, name
	return c
}

// dropCaches makes the next one read from storage.
func dropCaches() error {
	return errors.Join(exec.Command("sync").Run(), os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200)) //nolint:noctx // it ends
}
