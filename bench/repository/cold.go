package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dropCaches is the file through which the kernel is told to drop its caches.
const dropCaches = "/proc/sys/vm/drop_caches"

// dropCaches makes sure that a command reads from storage: it writes everything back and then drops it from the page cache.
func (b *bench) dropCaches() error {
	unix.Sync()
	if b.dropsAll {
		return os.WriteFile(dropCaches, []byte("3"), 0o200)
	}
	return filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // opened only for fadvise
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// prepareCold makes the caches cold for what a program reads, but not for the program itself: its load time is of no interest.
func (b *bench) prepareCold(ctx context.Context, program string) error {
	if err := b.dropCaches(); err != nil {
		return fmt.Errorf("drop caches: %w", err)
	}
	version := "--version"
	if program == b.varve || program == restic {
		version = "version"
	}
	_, err := b.run(ctx, program, version)
	return err
}

// describeCold describes how cold drops the caches, for a row's text.
func (b *bench) describeCold() string {
	if b.dropsAll {
		return "caches dropped"
	}
	return "files dropped from the page cache (fadvise)"
}
