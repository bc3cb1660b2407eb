// Package nbdexport serves a raw image with a qemu-storage-daemon, for benchmarks. What is written through it gets into a
// dirty bitmap, as in the QEMU of a running guest.
package nbdexport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/qmp"
)

// Name is the disk's export name on NBD.
const Name = "disk"

// Options say what is served, and where.
type Options struct {
	Image, Socket string
	// Bitmap is the name of the bitmap, which is empty at first.
	Bitmap string
	// Environment is the whole environment of the program.
	Environment []string
}

// Export is a qemu-storage-daemon with a raw image. It is not safe for concurrent use.
type Export struct {
	cmd     *exec.Cmd
	options Options
	qmp     *qmp.Client
	// out is our end of the pipe that is the process's standard output, with the monitor's answers.
	out   *os.File
	ended <-chan error
	said  bytes.Buffer
}

// Start serves an image, for reading and writing. The process dies with this one.
func Start(ctx context.Context, o Options) (x *Export, err error) {
	x = &Export{options: o}
	x.cmd = exec.CommandContext(ctx, "qemu-storage-daemon",
		"--blockdev", "driver=file,node-name=file,filename="+o.Image,
		"--blockdev", "driver=raw,node-name=disk,file=file",
		"--nbd-server", "addr.type=unix,max-connections=100,addr.path="+o.Socket,
		"--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp")
	x.cmd.Env, x.cmd.Stderr = o.Environment, &x.said
	x.cmd.WaitDelay = process.LastWords
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
	x.ended, err = process.Start(x.cmd)
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("qemu-storage-daemon: %w", err), x.out.Close())
	}
	if err := x.openDevice(in); err != nil {
		return nil, errors.Join(err, x.kill())
	}
	return x, nil
}

func (x *Export) openDevice(in io.Writer) error {
	x.qmp = qmp.New(in, x.out)
	if err := x.qmp.Run("block-dirty-bitmap-add", map[string]any{"node": "disk", "name": x.options.Bitmap}, nil); err != nil {
		return err
	}
	return x.addExport(true)
}

func (x *Export) addExport(writable bool) error {
	return x.qmp.Run("block-export-add", map[string]any{
		"type": "nbd", "id": "export", "node-name": "disk", "name": Name, "writable": writable, "bitmaps": []string{x.options.Bitmap},
	}, nil)
}

// ServeReadOnly ends writing: the export begins again, as one that a pull backup has. Nobody may be connected.
func (x *Export) ServeReadOnly() error {
	if err := x.qmp.Run("block-export-del", map[string]any{"id": "export"}, nil); err != nil {
		return err
	}
	if err := x.qmp.Await(func(e qmp.Event) bool { return e.Name == "BLOCK_EXPORT_DELETED" }); err != nil {
		return err
	}
	// A bitmap that still records cannot be exported with a node that nobody writes.
	if err := x.qmp.Run("block-dirty-bitmap-disable", map[string]any{"node": "disk", "name": x.options.Bitmap}, nil); err != nil {
		return err
	}
	return x.addExport(false)
}

// Target is the export for package nbd.
func (x *Export) Target() nbd.Target {
	return nbd.Target{Network: "unix", Address: x.options.Socket, Export: Name}
}

// URI returns the URI of the export.
func (x *Export) URI() string { return "nbd+unix:///" + Name + "?socket=" + x.options.Socket }

// PID returns the process that works for the reader of the export.
func (x *Export) PID() int { return x.cmd.Process.Pid }

// writers is how many requests are in flight. Their buffers count as the memory of every command that this process starts
// later.
const writers = 4

// WritePieces fills pieces with content, and flushes.
func (x *Export) WritePieces(ctx context.Context, pieces []extent.Extent, content io.Reader) (err error) {
	client, err := nbd.Dial(ctx, x.Target(), nbd.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Disconnect(ctx)) }()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, p := range pieces {
		data := make([]byte, p.Length)
		if _, err := io.ReadFull(content, data); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error { return client.WriteAt(gctx, data, p.Offset, 0) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("change the disk: %w", err)
	}
	return client.Flush(ctx)
}

// Stop ends the process in an orderly way. Its bitmap is lost with it.
func (x *Export) Stop() error {
	if err := x.qmp.Run("quit", map[string]any{}, nil); err != nil {
		return errors.Join(err, x.kill())
	}
	late := time.NewTimer(process.LastWords)
	defer late.Stop()
	select {
	case err := <-x.ended:
		return errors.Join(x.describeEnd(err), x.out.Close())
	case <-late.C:
		return errors.Join(errors.New("qemu-storage-daemon does not end"), x.kill())
	}
}

// kill ends the process at once.
func (x *Export) kill() error {
	_ = x.cmd.Process.Kill() // it may be gone already
	return errors.Join(x.describeEnd(<-x.ended), x.out.Close())
}

func (x *Export) describeEnd(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("qemu-storage-daemon: %w: %s", err, bytes.TrimSpace(x.said.Bytes()))
}
