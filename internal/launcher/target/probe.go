package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// probeBytes is how much a Probe writes: a block of every file system.
const probeBytes = 4 << 10

// Probe shows whether a volume's storage still takes writes. The free space does not show that: a file system answers from
// memory while the device below it hangs.
type Probe struct {
	volume *Volume
	file   *os.File
	block  [probeBytes]byte
}

// OpenProbe makes a file for a Probe in a backup's partial directory. It has no name there, except on NFS until Close.
func (v *Volume) OpenProbe(directory string) (*Probe, error) {
	name := path.Join(partialName(directory), ".probe")
	f, err := v.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, v.writeError("create probe", err)
	}
	if err := v.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(v.writeError("remove probe", err), f.Close())
	}
	return &Probe{volume: v, file: f}, nil
}

// Write writes a block, and returns when the storage has it.
func (p *Probe) Write() error {
	if err := p.volume.before("probe"); err != nil {
		return fmt.Errorf("write to target volume: %w", err)
	}
	p.block[0]++
	if _, err := p.file.WriteAt(p.block[:], 0); err != nil {
		return fmt.Errorf("write to target volume: %w", err)
	}
	if err := unix.Fdatasync(int(p.file.Fd())); err != nil {
		return fmt.Errorf("sync target volume: %w", err)
	}
	return nil
}

// Close ends the probe.
func (p *Probe) Close() error { return p.file.Close() }
