package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/qmp"
)

// exportName is the disk's export name on NBD.
const exportName = "disk"

// export is a qemu-storage-daemon with a raw image. What is written through it gets into a dirty bitmap, as in the
// QEMU of a running guest, and it is backed up through it. Its processor time counts as Varve's.
type export struct {
	cmd    *exec.Cmd
	socket string
	qmp    *qmp.Client
	// out is our end of the pipe that is the process's standard output, with the monitor's answers.
	out *os.File
	// ended is closed when the process is gone, after err is set.
	ended chan struct{}
	err   error
	said  bytes.Buffer
}

// startExport starts an export of an image with an empty bitmap.
func (b *bench) startExport(ctx context.Context, image, bitmap string) (x *export, err error) {
	x = &export{socket: filepath.Join(b.dir, "disk.sock"), ended: make(chan struct{})}
	x.cmd = exec.CommandContext(ctx, "qemu-storage-daemon",
		"--blockdev", "driver=file,node-name=file,filename="+image,
		"--blockdev", "driver=raw,node-name=disk,file=file",
		"--nbd-server", "addr.type=unix,max-connections=8,addr.path="+x.socket,
		"--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp")
	x.cmd.Env, x.cmd.Stderr = b.toolEnvironment(), &x.said
	x.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	x.cmd.WaitDelay = lastWords
	in, err := x.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Use our own pipe: Wait would close one of the command's pipes while the last answer is still being read.
	var theirs *os.File
	if x.out, theirs, err = os.Pipe(); err != nil {
		return nil, err
	}
	x.cmd.Stdout = theirs
	if err := errors.Join(x.startProcess(), theirs.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("qemu-storage-daemon: %w", err), x.out.Close())
	}
	if err := x.openDevice(in, bitmap); err != nil {
		return nil, errors.Join(err, x.killProcess())
	}
	return x, nil
}

// startProcess starts the process. The kernel kills the process when the thread that started it ends, so that thread stays.
func (x *export) startProcess() error {
	started := make(chan error, 1)
	go func() {
		defer close(x.ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := x.cmd.Start()
		started <- err
		if err == nil {
			x.err = x.cmd.Wait()
		}
	}()
	return <-started
}

func (x *export) openDevice(in io.Writer, bitmap string) error {
	x.qmp = qmp.New(in, x.out)
	if err := x.qmp.Run("block-dirty-bitmap-add", map[string]any{"node": "disk", "name": bitmap}, nil); err != nil {
		return err
	}
	return x.qmp.Run("block-export-add", map[string]any{
		"type": "nbd", "id": "export", "node-name": "disk", "name": exportName, "writable": true, "bitmaps": []string{bitmap},
	}, nil)
}

// uri returns the URI of the export for Varve.
func (x *export) uri() string { return "nbd+unix:///" + exportName + "?socket=" + x.socket }

// pid returns the process that works for the reader of the export.
func (x *export) pid() int { return x.cmd.Process.Pid }

// writers is how many requests are in flight. Their buffers count as the memory of every following command (see measure).
const writers = 4

// writePieces fills pieces with bytes that do not compress, and flushes.
func (x *export) writePieces(ctx context.Context, pieces []extent.Extent, stream uint64) (err error) {
	client, err := nbd.Dial(ctx, nbd.Target{Network: "unix", Address: x.socket, Export: exportName}, nbd.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Disconnect(ctx)) }()
	noise := corpus.Noise(seed, stream)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, p := range pieces {
		data := make([]byte, p.Length)
		if _, err := io.ReadFull(noise, data); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error { return client.WriteAt(gctx, data, p.Offset, 0) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("change the disk: %w", err)
	}
	return client.Flush(ctx)
}

// stopProcess ends the process in an orderly way. Its bitmap is lost with it.
func (x *export) stopProcess() error {
	if err := x.qmp.Run("quit", map[string]any{}, nil); err != nil {
		return errors.Join(err, x.killProcess())
	}
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-x.ended:
	case <-late.C:
		return errors.Join(errors.New("qemu-storage-daemon does not end"), x.killProcess())
	}
	return errors.Join(x.processFailure(), x.out.Close())
}

// killProcess ends the process at once.
func (x *export) killProcess() error {
	_ = x.cmd.Process.Kill() // it may be gone already
	<-x.ended
	return errors.Join(x.processFailure(), x.out.Close())
}

func (x *export) processFailure() error {
	if x.err == nil {
		return nil
	}
	return fmt.Errorf("qemu-storage-daemon: %w: %s", x.err, bytes.TrimSpace(x.said.Bytes()))
}
