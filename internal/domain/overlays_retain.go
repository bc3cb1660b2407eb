package domain

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/durable"
)

// Retain removes everything that belongs to no overlay of these volumes: the overlays and records of disks that the
// machine no longer has, or no longer tracks, and files that a crash left half made. A disk that runs without its
// overlay makes the overlay worthless, and nothing else would ever free its space, which the other overlays need. No
// QEMU may have an overlay open.
func (o *Overlays) Retain(volumes []string) error {
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return fmt.Errorf("list overlays: %w", err)
	}
	var extra []string
	for _, e := range entries {
		volume, known := volumeOfFile(e.Name())
		if known && !slices.Contains(volumes, volume) || strings.HasSuffix(e.Name(), unfinished) {
			extra = append(extra, e.Name())
		}
	}
	// Records first: an overlay without one counts as none.
	slices.SortFunc(extra, func(a, b string) int { return strings.Compare(filepath.Ext(a), filepath.Ext(b)) })
	for _, name := range extra {
		if err := durable.Remove(filepath.Join(o.Dir, name)); err != nil {
			return fmt.Errorf("remove what no tracked disk needs: %w", err)
		}
	}
	return nil
}

// unfinished is the suffix of files that a crash can leave half made.
const unfinished = ".new"

// volumeOfFile returns the volume that a file in the directory of the overlays belongs to. Any other file is not Varve's.
func volumeOfFile(name string) (volume string, known bool) {
	name = strings.TrimSuffix(name, unfinished)
	for _, suffix := range []string{".qcow2", ".json"} {
		if volume, known = strings.CutSuffix(name, suffix); known {
			return volume, true
		}
	}
	return "", false
}
