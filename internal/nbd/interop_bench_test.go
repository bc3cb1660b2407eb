//go:build nbd_interop

package nbd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/test/wait"
)

// BenchmarkReadQemuNBD reads a sparse file of 1 GiB from qemu-nbd, as BenchmarkRead does from this package's server.
func BenchmarkReadQemuNBD(b *testing.B) {
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, socket := filepath.Join(dir, "disk"), filepath.Join(dir, "s")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(file, 1<<30); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), "qemu-nbd", "-t", "-k", socket, "-f", "raw", "-e", "8", "-r", file)
	if err := cmd.Start(); err != nil {
		b.Fatalf("install Debian's package %s: %v", debian["qemu-nbd"], err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	wait.Succeeds(b, testTimeout, "qemu-nbd to listen", func() error {
		_, err := List(b.Context(), unixTarget(socket), Options{})
		return err
	})
	for _, size := range []int{4 << 10, 256 << 10, 2 << 20} {
		for _, parallel := range []int{1, 8} {
			b.Run(fmt.Sprintf("%dKiB/%d in flight", size>>10, parallel), func(b *testing.B) { benchRead(b, unixTarget(socket), size, parallel) })
		}
	}
}
