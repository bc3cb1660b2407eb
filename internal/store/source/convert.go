package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/privatesocket"
)

// qemuImgProgram converts images.
const qemuImgProgram = "qemu-img"

// convertRemote converts a qcow2 image on the server, without a copy of it.
func (j *job) convertRemote(ctx context.Context, v *version) (int64, error) {
	j.progress.done.Store(0) // The beginning is read again.
	r := newRanges(j, v)
	bytes, err := j.convert(ctx, r)
	if cause := r.cause(); err != nil && cause != nil && ctx.Err() == nil {
		err = cause // What QEMU saw is an input/output error.
	}
	return bytes, err
}

// convert converts a qcow2 image to the device, and returns the size of the disk in bytes.
func (j *job) convert(ctx context.Context, image nbd.Backend) (bytes int64, err error) {
	head := make([]byte, min(qcow2HeadBytes, image.Size()))
	if err := image.ReadAt(ctx, head, 0); err != nil {
		return 0, fmt.Errorf("read the header of the image: %w", err)
	}
	disk, err := checkQCOW2(head)
	if err != nil {
		return 0, err
	}
	file := &qcow2File{image: image, head: head, clusterBytes: disk.clusterBytes}
	dir, err := os.MkdirTemp(j.options.Scratch, "image-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the conversion: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "nbd")
	listener, err := privatesocket.Listen(ctx, socket)
	if err != nil {
		return 0, fmt.Errorf("serve the image to %s: %w", qemuImgProgram, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	server := &nbd.Server{
		Exports: oneExport{file}, Log: j.options.Log,
		Limits: nbd.Limits{Connections: 2, Workers: rangeReaders, MaxRequestBytes: rangeBytes},
	}
	group.Go(func() error { return server.Serve(serving, listener) })
	group.Go(func() error {
		defer stop()
		return runQEMUImg(ctx, convertArguments(socket, j.options.Device)...)
	})
	if err := group.Wait(); err != nil {
		// If the disk is full, the device says so here alone, and QEMU has only seen an error of input or output.
		if full := j.device.sync(); errors.Is(full, errclass.Exhausted) {
			err = full
		} else if cut := file.cause(); cut != nil {
			err = cut
		}
		return 0, fmt.Errorf("convert the qcow2 image: %w", err)
	}
	return disk.bytes, nil
}

// oneExport is the only export of a server, with the empty name.
type oneExport struct{ backend nbd.Backend }

// Open implements nbd.Exports.
func (o oneExport) Open(_ context.Context, name string) (nbd.Export, error) {
	if name != "" {
		return nbd.Export{}, nbd.ErrUnknownExport
	}
	return nbd.Export{Backend: o.backend, ReadOnly: true, MultiConn: true}, nil
}

// List implements nbd.Exports.
func (oneExport) List(context.Context) ([]nbd.ListedExport, error) {
	return []nbd.ListedExport{{}}, nil
}

// convertArguments returns the arguments of qemu-img. They name every driver, and that the image has no backing file,
// so that nothing depends on what is in the image. The device is zero, and its size is not the image's. Zeroes of fewer
// than blockBytes are written, because each hole makes one more extent.
func convertArguments(socket, device string) []string {
	image, err := json.Marshal(map[string]any{
		"driver": "qcow2", "backing": nil,
		"file": map[string]any{"driver": "nbd", "server": map[string]string{"type": "unix", "path": socket}},
	})
	if err != nil {
		panic(fmt.Errorf("encode the description of an image: %w", err)) // Strings can always be encoded.
	}
	return []string{"convert", "-n", "--target-is-zero", "-W", "-S", strconv.Itoa(blockBytes), "-O", "raw", "json:" + string(image), device}
}

// runQEMUImg runs qemu-img to its end. It gets no environment, which may have passwords and keys.
func runQEMUImg(ctx context.Context, args ...string) error {
	path, err := exec.LookPath(qemuImgProgram)
	if err != nil {
		return errclass.Errorf(errclass.Invalid, "a qcow2 image needs the program %s: %w", qemuImgProgram, err)
	}
	command := exec.CommandContext(ctx, path, args...)
	command.Env = []string{} // nil would be this process' own
	command.WaitDelay = time.Second
	var stderr boundedWriter
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		said := strings.Join(strings.Fields(stderr.String()), " ")
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Exited() { // The program itself has found something wrong.
			return errclass.Errorf(errclass.Invalid, "the image is damaged, or cannot be converted: %s: %s",
				qemuImgProgram, said)
		}
		return fmt.Errorf("%s: %w: %s", qemuImgProgram, err, said)
	}
	return nil
}

// boundedWriter keeps the beginning of what is written.
type boundedWriter struct{ strings.Builder }

// Write implements io.Writer.
func (w *boundedWriter) Write(p []byte) (int, error) {
	const maxBytes = 2048
	w.WriteString(string(p[:min(len(p), max(0, maxBytes-w.Len()))]))
	return len(p), nil
}
