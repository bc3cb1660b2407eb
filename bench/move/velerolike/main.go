// Command velerolike moves a block device into a kopia repository on S3 as Velero 1.18 does, without a cluster: the device is a streaming
// file in a virtual directory, which kopia's uploader reads from its beginning to its end, with the policy and the repository format that
// Velero sets, and the last snapshot as the parent (pkg/uploader/kopia and pkg/repository/udmrepo/kopialib of Velero). It shares no code
// with Varve. Velero links a fork of an older kopia.
//
// Usage: velerolike CONFIG create | velerolike CONFIG backup DEVICE. CONFIG is a file with a Config. It prints a Result.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where the repository is.
type Config struct {
	Endpoint, Region, Bucket, Prefix string
	AccessKey, SecretKey             string
	// RootCA is in PEM.
	RootCA []byte
}

// Result is what a backup used. Snapshot is the ID of its manifest.
type Result struct {
	Snapshot string
	// Bytes is how much was read.
	Bytes               int64
	Seconds, CPUSeconds float64
	MemoryMiB           float64
}

func main() {
	if err := run(context.Background(), os.Args[1:], time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "velerolike:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, began time.Time) (err error) {
	if len(args) < 2 {
		return errors.New("usage: velerolike CONFIG create | velerolike CONFIG backup DEVICE")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var c Config
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	dir, err := os.MkdirTemp("", "velerolike-") // a mover pod of Velero's begins without a cache as well
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	switch {
	case args[1] == "create" && len(args) == 2:
		return create(ctx, &c)
	case args[1] == "backup" && len(args) == 3:
		r, err := backup(ctx, &c, dir, args[2])
		if err != nil {
			return err
		}
		if err := r.addUsage(began); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return fmt.Errorf("unknown arguments %q", args[1:])
}

// addUsage adds what this process has used since it began.
func (r *Result) addUsage(began time.Time) error {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return os.NewSyscallError("getrusage", err)
	}
	r.Seconds = time.Since(began).Seconds()
	r.CPUSeconds = time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	r.MemoryMiB = float64(u.Maxrss) / 1024
	return nil
}
