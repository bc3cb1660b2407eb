package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
)

// tools are the programs that this package runs, each with its Debian package.
var tools = map[string]string{serverProgram: "qemu-system-common, from Debian 13 on qemu-utils,", "qemu-img": "qemu-utils"}

func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errclass.Errorf(ErrNotFound, "qcow2 disks need the program %s: install Debian's package %s (%w)", name, tools[name], err)
	}
	return path, nil
}

// qemuImg runs qemu-img to its end, confined to the image.
func qemuImg(ctx context.Context, image *os.File, args ...string) error {
	_, err := qemuImgOutput(ctx, image, args...)
	return err
}

// overriddenImage describes to QEMU the first file that a child was given, as a qcow2 image without the backing file
// that its header may name.
var overriddenImage = fmt.Sprintf(`json:{"driver":"qcow2","backing":null,"file":{"driver":"file","filename":%q}}`, descriptorPath(0))

// qemuImgOutput is qemuImg, and returns what it prints.
func qemuImgOutput(ctx context.Context, image *os.File, args ...string) ([]byte, error) {
	c, err := newConfined(ctx, "qemu-img", []*os.File{image}, args...)
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	var stderr tail
	c.cmd.Stdout = &stdout
	c.cmd.Stderr = &stderr
	if err = c.run(); ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("qemu-img %s %s: %w: %s", args[0], image.Name(), err, stderr.String())
	}
	return stdout.Bytes(), nil
}

// createImage creates an empty qcow2 image in an open file, and replaces what is there. clusterBytes is the size of its
// clusters.
func createImage(ctx context.Context, f *os.File, bytes, clusterBytes int64) error {
	return qemuImg(ctx, f, "create", "-q", "-f", string(QCOW2), "-o", fmt.Sprintf("cluster_size=%d", clusterBytes), descriptorPath(0), fmt.Sprint(bytes))
}

// renameBacking writes the name of a backing file into the header of an image, and changes nothing else; "" is none.
func renameBacking(ctx context.Context, f *os.File, name string, format Format) error {
	args := []string{"rebase", "-q", "-u", "-f", string(QCOW2), "-b", name}
	if name != "" {
		args = append(args, "-F", string(format))
	}
	return qemuImg(ctx, f, append(args, descriptorPath(0))...)
}

// repairImage repairs an image that a killed server has left, so that it is as good as one that was closed. Such an
// image is consistent, but has leaked clusters.
func repairImage(ctx context.Context, image *imageChain) error {
	f := image.files[0]
	err := qemuImg(ctx, f.file, "check", "-q", "-r", "leaks", overriddenImage)
	var exit *exec.ExitError
	if errors.As(err, &exit) { // Its exit status does not tell a damaged image from one in use.
		return errclass.Errorf(errclass.Conflict, "the restore of %s cannot go on: close the image wherever it is open, or remove it to start anew: %w", image.path, err)
	}
	return err
}

// tailBytes is how much of a program's output is kept.
const tailBytes = 4 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailBytes):]
	return len(p), nil
}

// String returns what was kept, on one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.end)), " ")
}
