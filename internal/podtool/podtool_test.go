package podtool_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/podtool"
)

func TestHoldEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	says, out := io.Pipe()
	held := make(chan error)
	go func() { held <- podtool.Hold(ctx, out) }()
	if line, err := bufio.NewReader(says).ReadString('\n'); err != nil {
		t.Fatalf("Hold says %q: %v", line, err)
	}
	select {
	case <-held:
		t.Fatal("Hold ended by itself")
	default:
	}
	cancel()
	if err := <-held; err != nil {
		t.Fatal(err)
	}
}

func TestInstallSelf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 { // a restarted init container does it again
		if err := podtool.InstallSelf(dir); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, got := read(t, self), read(t, filepath.Join(dir, "varve"))
	if !bytes.Equal(want, got) {
		t.Error("the copy differs from the program")
	}
	info, err := os.Stat(filepath.Join(dir, "varve"))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	onlyFiles(t, dir, "varve")
}

func TestKernelBootCopy(t *testing.T) {
	t.Parallel()
	image, dir := t.TempDir(), t.TempDir()
	kernel, initrd := filepath.Join(image, "vmlinuz"), filepath.Join(image, "initrd.img")
	write(t, kernel, "kernel")
	write(t, initrd, "initrd")
	if err := podtool.KernelBootCopy(kernel, initrd, dir); err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, filepath.Join(dir, "kernel"))) + "+" + string(read(t, filepath.Join(dir, "initrd"))); got != "kernel+initrd" {
		t.Errorf("copied %q", got)
	}
	onlyFiles(t, dir, "initrd", "kernel")
}

func TestKernelBootCopySaysWhatTheImageLacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := podtool.KernelBootCopy("/boot/no-such-kernel", "", dir)
	if err == nil || !strings.Contains(err.Error(), "/boot/no-such-kernel: correct kernelPath") {
		t.Errorf("err = %v", err)
	}
	if err := podtool.KernelBootCopy(dir, "", dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if err := podtool.KernelBootCopy("", "", dir); err == nil {
		t.Error("nothing to copy is not an error")
	}
	onlyFiles(t, dir)
}

func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("files %v, want %v", got, want)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
