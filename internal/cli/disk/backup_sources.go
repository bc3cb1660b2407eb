package disk

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/mover"
)

// parseSources returns the disks that the arguments name, read as the flags say.
func (b *backupFlags) parseSources(args []string) ([]mover.Source, error) {
	var out []mover.Source
	for _, arg := range args {
		name, where, ok := strings.Cut(arg, "=")
		if !ok || name == "" || where == "" {
			return nil, failure.Usage("disk %s: use DISK=WHERE, such as root=/path", arg)
		}
		if slices.ContainsFunc(out, func(d mover.Source) bool { return d.Name == name }) {
			return nil, failure.Usage("disk %s is given twice", name)
		}
		out = append(out, mover.Source{Name: name, Location: where})
	}
	formats, err := parsePerDisk("--format", b.formats, out)
	if err != nil {
		return nil, err
	}
	bitmaps, err := parsePerDisk("--bitmap", b.bitmaps, out)
	if err != nil {
		return nil, err
	}
	for i := range out {
		format := disk.Format(formats[out[i].Name])
		if err := validateFormat(out[i].Location, string(format)); err != nil {
			return nil, err
		}
		out[i].Options = disk.SourceOptions{Format: format, Bitmap: bitmaps[out[i].Name]}
		out[i].Checkpoint = b.checkpoint
	}
	return out, errors.Join(b.validateTracking(out), b.addBacking(out), b.addIgnoreLocks(out), b.addTLS(out))
}

// validateTracking refuses checkpoint names that could be used twice, and flags that contradict each other.
func (b *backupFlags) validateTracking(sources []mover.Source) error {
	if b.track {
		switch {
		case b.checkpoint != "" || len(b.bitmaps) > 0:
			return failure.Usage("--track chooses the bitmap and the checkpoint itself: omit --bitmap and --checkpoint")
		case !slices.ContainsFunc(sources, func(d mover.Source) bool { return d.Options.Format == disk.QCOW2 }):
			return failure.Usage("--track needs a qcow2 image (--format qcow2): other disks have no place for a bitmap")
		}
		return nil
	}
	if b.checkpoint != "" {
		if err := validateCheckpoint("--checkpoint", b.checkpoint); err != nil {
			return err
		}
	}
	for i := range sources {
		if bitmap := sources[i].Options.Bitmap; bitmap != "" {
			if err := validateCheckpoint("--bitmap", bitmap); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBacking adds what --backing says to the disks.
func (b *backupFlags) addBacking(sources []mover.Source) error {
	for _, value := range b.backing {
		name, file := "", value
		if !strings.HasPrefix(value, string(disk.Raw)+":") && !strings.HasPrefix(value, string(disk.QCOW2)+":") {
			name, file, _ = strings.Cut(value, "=")
		}
		format, path, _ := strings.Cut(file, ":")
		if f := disk.Format(format); path == "" || f != disk.Raw && f != disk.QCOW2 {
			return failure.Usage("--backing %s: use FORMAT:PATH, such as raw:/path, or DISK=FORMAT:PATH", value)
		}
		at := slices.IndexFunc(sources, func(d mover.Source) bool { return d.Name == name || name == "" && len(sources) == 1 })
		switch {
		case at < 0 && name == "":
			return failure.Usage("--backing %s: name the disk, because there are several: use DISK=FORMAT:PATH", value)
		case at < 0:
			return failure.Usage("--backing %s: no disk is called %s", value, name)
		case sources[at].Options.Format != disk.QCOW2:
			return failure.Usage("--backing %s: disk %s has no --format qcow2, and only qcow2 images have backing files", value, sources[at].Name)
		}
		sources[at].Options.Backing = append(sources[at].Options.Backing, disk.BackingFile{Format: disk.Format(format), Path: path})
	}
	return nil
}

// addIgnoreLocks adds --ignore-locks to the disks whose locks can be ignored.
func (b *backupFlags) addIgnoreLocks(sources []mover.Source) error {
	found := !b.ignoreLocks
	for i := range sources {
		if b.ignoreLocks && sources[i].Options.Format != disk.QCOW2 && !disk.IsURI(sources[i].Location) {
			sources[i].Options.IgnoreLocks, found = true, true
		}
	}
	if !found {
		return failure.Usage("--ignore-locks: no disk is a raw file or device; read a qcow2 image that is in use through an NBD export")
	}
	return nil
}

// addTLS adds the TLS configuration to the disks that need it.
func (b *backupFlags) addTLS(sources []mover.Source) error {
	var wheres []string
	for _, d := range sources {
		wheres = append(wheres, d.Location)
	}
	config, err := b.tls.loadTLSConfig(wheres...)
	for i := range sources {
		if usesTLS(sources[i].Location) {
			sources[i].Options.TLS = config
		}
	}
	return err
}

// validateFormat refuses an unknown --format. It also refuses a missing one if the file's name suggests qcow2.
func validateFormat(where, format string) error {
	switch disk.Format(format) {
	case "":
		if strings.EqualFold(filepath.Ext(where), ".qcow2") && !strings.Contains(where, "://") {
			return failure.Usage("%s: say --format qcow2 or --format raw; the format of a disk is never guessed", where)
		}
		return nil
	case disk.Raw, disk.QCOW2:
		return nil
	default:
		return failure.Usage("--format %s: use raw or qcow2", format)
	}
}

// validateParallel refuses a --parallel that makes no sense.
func validateParallel(workers int) error {
	if workers < 1 {
		return failure.Usage("--parallel %d: give at least 1", workers)
	}
	return nil
}

// parsePerDisk reads values that apply to all disks, or as DISK=VALUE to one.
func parsePerDisk(flag string, values []string, disks []mover.Source) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range values {
		name, value, one := strings.Cut(v, "=")
		if !one {
			for _, d := range disks {
				if out[d.Name] == "" {
					out[d.Name] = v
				}
			}
			continue
		}
		if !slices.ContainsFunc(disks, func(d mover.Source) bool { return d.Name == name }) {
			return nil, failure.Usage("%s %s: no disk is called %s", flag, v, name)
		}
		out[name] = value
	}
	return out, nil
}
