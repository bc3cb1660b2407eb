//go:build nbd_interop

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/varvebackup/varve/internal/repository"
)

// noise is a disk of random bytes that are generated when they are read, in units of 64 KiB.
type noise struct{}

func (noise) ReadAt(_ context.Context, p []byte, offset int64) error {
	const unit = 64 << 10
	if offset%unit != 0 || len(p)%unit != 0 {
		return fmt.Errorf("read of %d bytes at %d", len(p), offset)
	}
	for ; len(p) > 0; p, offset = p[unit:], offset+unit {
		var seed [32]byte
		binary.LittleEndian.PutUint64(seed[:], uint64(offset))
		if _, err := rand.NewChaCha8(seed).Read(p[:unit]); err != nil {
			return err
		}
	}
	return nil
}

// TestServe_keepsToItsMemory reads a disk many times as large as the memory that the server may take.
func TestServe_keepsToItsMemory(t *testing.T) {
	t.Parallel()
	const diskBytes, most = 1 << 30, 300 << 20 // deriving the key from the password takes 140 MiB of it
	k := keep(t, repository.DiskSource{Bytes: diskBytes, Reader: noise{}})
	s := k.serve(t, "--cache-size", "16Mi", "--overlay", "o")
	for _, options := range [][]string{{"-C", "4"}, {"-C", "1", "-R", "1"}} {
		tool(t, nil, "nbdcopy", append(options, s.uri(), "null:")...)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(peak)[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB at most", kib>>10)
	if kib<<10 > most {
		t.Errorf("it had %d MiB", kib>>10)
	}
	if err := s.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
