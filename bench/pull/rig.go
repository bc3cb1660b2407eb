package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/bench/nbdexport"
	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
	// seed is the seed of all randomness in a run.
	seed = 1

	socketName = "disk.sock"
	imageName  = "disk.img"

	// A change of regionBytes lies in each strideBytes of the disk. Changes do not touch one another.
	regionBytes = 64 << 10
	strideBytes = 4 * regionBytes
)

// rig is the disk, and everything between it and a client.
type rig struct {
	*options
	dir       string
	diskBytes int64
	changed   int64
	disk      *nbdexport.Export
	server    *side
	launcher  *side
	addresses role
}

// openRig makes the disk and starts all processes. close ends them and removes the disk.
func openRig(ctx context.Context, o *options) (r *rig, err error) {
	r = &rig{options: o, diskBytes: o.dataMiB * mib}
	var space unix.Statfs_t
	if err := unix.Statfs(o.dir, &space); err != nil {
		return nil, fmt.Errorf("%s: %w", o.dir, err)
	}
	if free := int64(space.Bavail) * space.Bsize; free < r.diskBytes+gib { //nolint:gosec // sizes of file systems fit
		return nil, fmt.Errorf("%s has %d MiB free: give another -dir, or a smaller -data-mib", o.dir, free/mib)
	}
	if r.dir, err = os.MkdirTemp(o.dir, "bench-pull-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := writeSecrets(r.dir); err != nil {
		return nil, err
	}
	if err := r.makeDisk(ctx); err != nil {
		return nil, err
	}
	if r.server, err = r.startSide(ctx, serverRole, role{}); err != nil {
		return nil, err
	}
	r.addresses = r.server.role
	r.launcher, err = r.startSide(ctx, launcherRole, r.addresses)
	return r, err
}

// makeDisk fills a disk without holes, serves it, and changes regions that are scattered over it.
func (r *rig) makeDisk(ctx context.Context) error {
	system, err := corpus.SystemFiles(r.diskBytes / 2)
	if err != nil {
		return err
	}
	image := filepath.Join(r.dir, imageName)
	runs := corpus.Layout(seed, r.diskBytes, corpus.Mix(r.diskBytes, system.Bytes))
	if err := corpus.Write(ctx, image, seed, r.diskBytes, runs, system); err != nil {
		return err
	}
	r.disk, err = nbdexport.Start(ctx, nbdexport.Options{
		Image: image, Socket: filepath.Join(r.dir, socketName), Bitmap: bitmapName, Environment: os.Environ(),
	})
	if err != nil {
		return err
	}
	pieces := scatteredRegions(r.diskBytes)
	r.changed = int64(len(pieces)) * regionBytes
	if err := r.disk.WritePieces(ctx, pieces, corpus.Noise(seed, 1)); err != nil {
		return err
	}
	return r.disk.ServeReadOnly()
}

// scatteredRegions returns one region in each stride, so that no two of them are neighbours.
func scatteredRegions(diskBytes int64) []extent.Extent {
	rng := rand.New(rand.NewPCG(seed, 2))
	var all []extent.Extent
	for at := int64(0); at+strideBytes <= diskBytes; at += strideBytes {
		all = append(all, extent.Extent{Offset: at + regionBytes*rng.Int64N(strideBytes/regionBytes-1), Length: regionBytes})
	}
	return all
}

func (r *rig) close() error {
	var failures []error
	for _, s := range []*side{r.launcher, r.server} {
		if s != nil {
			failures = append(failures, s.stop())
		}
	}
	if r.disk != nil {
		failures = append(failures, r.disk.Stop())
	}
	return errors.Join(append(failures, os.RemoveAll(r.dir))...)
}

// side is a running process of this program.
type side struct {
	name  string
	role  role
	cmd   *exec.Cmd
	input io.Closer
	ended <-chan error
	said  bytes.Buffer
}

// roleCommand returns the command that starts this program in a role.
func (r *rig) roleCommand(ctx context.Context, name string, what role) (*exec.Cmd, error) {
	what.Dir = r.dir
	if r.profile != "" {
		what.Profile = filepath.Join(r.profile, name+".pprof")
	}
	argument, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, "/proc/self/exe", name, string(argument)), nil
}

// startSide starts a process and waits until it is ready.
func (r *rig) startSide(ctx context.Context, name string, what role) (*side, error) {
	s := &side{name: name}
	var err error
	if s.cmd, err = r.roleCommand(ctx, name, what); err != nil {
		return nil, err
	}
	input, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer output.Close() //nolint:errcheck // it is only read
	s.input, s.cmd.Stdout, s.cmd.Stderr = input, theirs, &s.said
	s.cmd.WaitDelay = process.LastWords
	s.ended, err = process.Start(s.cmd)
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.role)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s is not ready: %w", name, err), s.stop())
	}
	return s, nil
}

func (s *side) pid() int { return s.cmd.Process.Pid }

// stop asks the process to end, and ends it if it does not.
func (s *side) stop() error {
	_ = s.input.Close() // its end closes it as well
	late := time.AfterFunc(process.LastWords, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	if err := <-s.ended; err != nil {
		return fmt.Errorf("%s: %w: %s", s.name, err, bytes.TrimSpace(s.said.Bytes()))
	}
	return nil
}
