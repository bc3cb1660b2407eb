// Command guestwriter measures synced writes in a guest. It writes 4 KiB to clusters of a device, one after the other,
// each with an fsync, and prints how long each took, in nanoseconds. Usage: guestwriter DEVICE FIRST COUNT.
package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

const (
	writeBytes = 4 << 10
	// strideBytes is more than a cluster, so that QEMU copies one for each write during a backup.
	strideBytes = 320 << 10
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guestwriter:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) != 3 {
		return errors.New("usage: guestwriter DEVICE FIRST COUNT")
	}
	first, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	count, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(args[0], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content := make([]byte, writeBytes)
	for i := first; i < first+count; i++ {
		rand.Read(content) //nolint:errcheck // it never fails
		began := time.Now()
		if _, err := f.WriteAt(content, i*strideBytes); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}
