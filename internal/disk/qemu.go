package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// tools are the programs that this package runs, with Debian's package of each.
var tools = map[string]string{"qemu-nbd": "qemu-utils", "qemu-img": "qemu-utils"}

func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errorf(ErrNotFound, "qcow2 disks need the program %s: install Debian's package %s (%w)", name, tools[name], err)
	}
	return path, nil
}

// qemuImg runs qemu-img to its end and returns what it says.
func qemuImg(ctx context.Context, args ...string) ([]byte, error) {
	path, err := program("qemu-img")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr tail
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("qemu-img %s: %w: %s", args[0], err, stderr.String())
	}
	return out, nil
}

// hasBitmap checks that the image itself has the bitmap, and can tell what is in it. qemu-nbd would serve the bitmap of a backing file
// too, which has nothing of what was written to the image since.
func hasBitmap(ctx context.Context, image, bitmap string) error {
	// -U: the image may be open elsewhere for reading with a lock; a writer makes qemu-nbd refuse it.
	out, err := qemuImg(ctx, "info", "-U", "-f", string(QCOW2), "--output=json", image)
	if err != nil {
		return fmt.Errorf("find bitmap %s: %w", bitmap, err)
	}
	var info struct {
		Format struct {
			Data struct {
				Bitmaps []struct {
					Name  string   `json:"name"`
					Flags []string `json:"flags"`
				} `json:"bitmaps"`
			} `json:"data"`
		} `json:"format-specific"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return fmt.Errorf("find bitmap %s of %s: qemu-img info: %w", bitmap, image, err)
	}
	var names []string
	for _, b := range info.Format.Data.Bitmaps {
		if b.Name != bitmap {
			names = append(names, b.Name)
			continue
		}
		for _, f := range b.Flags {
			if f == "in-use" {
				return errorf(ErrInvalid, "bitmap %s of %s was not saved when its last user ended, so what changed is not known: remove it and read the whole disk", bitmap, image)
			}
		}
		return nil
	}
	return noBitmap(image, bitmap, names)
}

func noBitmap(disk, bitmap string, names []string) error {
	has := "it has none"
	if len(names) > 0 {
		has = "it has " + strings.Join(names, ", ")
	}
	return errorf(ErrNotFound, "disk %s has no bitmap %s (%s): name one of its own, or read the whole disk", disk, bitmap, has)
}

// create makes a new qcow2 image at path, in the place of what is there.
func create(ctx context.Context, path string, bytes int64) error {
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err != nil { // for its mode
		return err
	} else if err := f.Close(); err != nil {
		return err
	}
	_, err := qemuImg(ctx, "create", "-q", "-f", string(QCOW2), path, fmt.Sprint(bytes))
	return err
}

// repair makes an image that a killed qemu-nbd has left as good as one that was closed. Such an image is consistent, but has clusters that nobody uses.
func repair(ctx context.Context, path string) error {
	_, err := qemuImg(ctx, "check", "-q", "-f", string(QCOW2), "-r", "leaks", path)
	var exit *exec.ExitError
	if errors.As(err, &exit) { // Its status does not tell damage from use.
		return errorf(ErrConflict, "the restore of %s cannot go on: close the image wherever it is open, or remove it to start anew: %w", path, err)
	}
	return err
}

// tailBytes is how much is kept of what a program says.
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

// String is what was said, on one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.end)), " ")
}
