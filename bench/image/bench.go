package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/store/loop"
)

// workName is the directory below -dir that is removed at the end. Its name is always the same, so that the next run
// removes what a killed run left behind.
const workName = "bench-image"

// bench is one run of the benchmark.
type bench struct {
	*options
	log     io.Writer
	work    string
	lock    *os.File
	devices loop.Devices
	// first and second are the disks of two nodes.
	first, second *node
	content       *content
	// made says that the first disk has the image that copies and clones are made from.
	made bool
}

// part measures some of the rows.
type part struct {
	ids []string
	run func(*bench, context.Context) ([]report.Row, error)
}

func parts() []part {
	return []part{
		{[]string{"image-create", "image-create-hashed"}, (*bench).measureCreate},
		{[]string{"image-create-qcow2"}, (*bench).measureCreateQCOW2},
		{[]string{"image-sync"}, (*bench).measureSync},
		{[]string{"image-clone", "image-clone-worst", "image-clone-bytes"}, (*bench).measureClones},
		{ioIDs(), (*bench).measureIO},
	}
}

func rowIDs() []string {
	var all []string
	for _, p := range parts() {
		all = append(all, p.ids...)
	}
	return all
}

// openBench makes the disks and the image's files.
func openBench(ctx context.Context, o *options) (_ *bench, err error) {
	for _, program := range []string{"qemu-img", "mkfs.xfs", "fstrim", "losetup", "fio"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: run hack/deps.sh bench", err)
		}
	}
	b := &bench{
		options: o, log: os.Stderr, work: filepath.Join(o.dir, workName),
		devices: loop.Devices{Dir: "/dev", Clock: clock.RealClock{}},
	}
	if err := b.openWork(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.first, err = b.openNode(ctx, "first"); err != nil {
		return nil, err
	}
	if b.second, err = b.openNode(ctx, "second"); err != nil {
		return nil, err
	}
	b.content, err = b.makeContent(ctx)
	return b, err
}

// openWork makes an empty directory for this run alone.
func (b *bench) openWork(ctx context.Context) error {
	if err := os.MkdirAll(b.work, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(b.work)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("%s is in use by another run: %w", b.work, err), lock.Close())
	}
	if err := b.clearWork(ctx); err != nil {
		return errors.Join(err, lock.Close())
	}
	b.lock = lock
	return os.MkdirAll(b.work, 0o700)
}

// clearWork removes all that this run, or one that was killed, has made. What is mounted is below the directory.
func (b *bench) clearWork(ctx context.Context) error {
	entries, err := os.ReadDir(b.work)
	if err != nil {
		return err
	}
	var failures []error
	for _, e := range entries {
		if path := filepath.Join(b.work, e.Name()); e.IsDir() {
			failures = append(failures, detachBelow(ctx, path), unmount(path))
		}
	}
	if err := errors.Join(append(failures, detachBelow(ctx, b.work))...); err != nil {
		return fmt.Errorf("clear %s: %w", b.work, err)
	}
	for _, e := range entries {
		failures = append(failures, os.RemoveAll(filepath.Join(b.work, e.Name())))
	}
	return errors.Join(failures...)
}

// detachBelow detaches the loop devices of files below a directory. It does not ask the devices, because those of other
// programs may have lost their files.
func detachBelow(ctx context.Context, dir string) error {
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, d := range devices {
		file, readErr := os.ReadFile(d)
		if readErr != nil || !strings.HasPrefix(string(file), dir+"/") {
			continue // the device has no file any more
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(d)))
		_, detachErr := runTool(ctx, "losetup", "--detach", "/dev/"+device)
		err = errors.Join(err, detachErr)
	}
	return err
}

// unmount unmounts a directory if something is mounted there.
func unmount(dir string) error {
	if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// close removes everything.
func (b *bench) close() error {
	var failures []error
	for _, n := range []*node{b.first, b.second} {
		if n != nil {
			failures = append(failures, n.disk.Close())
		}
	}
	if b.content != nil {
		failures = append(failures, b.content.close())
	}
	// An interrupt has ended the run's context.
	failures = append(failures, b.clearWork(context.Background()), os.Remove(b.work), b.lock.Close())
	return errors.Join(failures...)
}

// measureParts runs the requested parts one after the other.
func (b *bench) measureParts(ctx context.Context) ([]report.Row, error) {
	var rows []report.Row
	for _, p := range parts() {
		if !b.wantsAny(p.ids...) {
			continue
		}
		more, err := p.run(b, ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, slices.DeleteFunc(more, func(r report.Row) bool { return !b.wantsAny(r.ID) })...)
	}
	return rows, nil
}

// collectFacts returns what the figures depend on apart from the machine.
func (b *bench) collectFacts(ctx context.Context) (map[string]any, error) {
	versions := map[string]string{}
	for _, program := range []string{"fio", "qemu-img", "cp", "mkfs.xfs"} {
		option := "--version"
		if program == "mkfs.xfs" {
			option = "-V"
		}
		out, err := exec.CommandContext(ctx, program, option).Output()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", program, option, err)
		}
		versions[program], _, _ = strings.Cut(string(out), "\n")
	}
	load, err := report.ReadLoad()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"rounds": b.rounds, "imageMiB": b.imageMiB, "clones": b.clones, "ioSeconds": b.ioTime.Seconds(),
		"versions": versions, "loadAfter": load,
	}, nil
}
