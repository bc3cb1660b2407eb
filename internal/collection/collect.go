package collection

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/manifest"
)

// Collect fetches the volumes of a backup into files, or goes on with that. When it returns without an error, everything is
// verified and on stable storage. Errors are those of package endpoint and package disk, ErrNoParent, and of class Conflict
// if the directory has something else.
func Collect(ctx context.Context, request Request) (*Result, error) {
	q, err := request.withDefaults()
	if err != nil {
		return nil, err
	}
	existing, err := q.checkExisting(ctx)
	if existing != nil || err != nil {
		return existing, err
	}
	p, err := q.findParent()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(q.Directory, 0o700); err != nil {
		return nil, err
	}
	s, err := q.openState(p)
	if err != nil {
		return nil, err
	}
	result := &Result{Volumes: make([]VolumeResult, len(q.Backup.Volumes))}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(q.Parallel)
	for i, v := range q.Backup.Volumes {
		group.Go(func() (err error) {
			if groupCtx.Err() != nil {
				return context.Cause(groupCtx)
			}
			result.Volumes[i], err = q.collectVolume(groupCtx, s, p, v)
			if err != nil {
				return fmt.Errorf("volume %s: %w", v.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if result.Manifest, err = q.writeManifest(s, p); err != nil {
		return nil, err
	}
	return result, durable.Remove(s.path)
}

// checkExisting returns what an earlier Collect has completed, once its files are verified; nil if there is nothing.
func (q *Request) checkExisting(ctx context.Context) (*Result, error) {
	m, _, err := readManifest(q.Directory)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // as documented
	case err != nil:
		return nil, err
	case m.Backup.UID != q.Backup.UID:
		return nil, errclass.Errorf(errclass.Conflict, "%s has another backup, %s (UID %s): choose another directory", q.Directory, m.Backup.Name, m.Backup.UID)
	}
	for _, v := range q.Backup.Volumes {
		if m.Volume(v.Name) == nil {
			return nil, errclass.Errorf(errclass.Corrupt, "the manifest in %s does not have volume %s", q.Directory, v.Name)
		}
	}
	for _, v := range m.Volumes {
		sum, err := hashFile(ctx, filepath.Join(q.Directory, v.File))
		if err != nil {
			return nil, fmt.Errorf("verify volume %s: %w", v.Name, err)
		}
		if sum != v.SHA256 {
			return nil, errclass.Errorf(errclass.Corrupt, "%s was changed: its SHA-256 is %s, and the manifest has %s", filepath.Join(q.Directory, v.File), sum, v.SHA256)
		}
		q.Progress(Progress{Volume: v.Name, Phase: PhaseDone})
	}
	return &Result{Manifest: m}, nil
}

// writeManifest completes the backup.
func (q *Request) writeManifest(s *state, p *parent) (*manifest.Manifest, error) {
	b := &q.Backup
	m := manifest.Manifest{
		FormatVersion: manifest.FormatVersion, Namespace: b.Namespace, VM: b.VM, Backup: manifest.Backup{Name: b.Name, UID: b.UID},
		Tracker: b.Tracker, Checkpoint: b.Checkpoint, PointInTime: b.PointInTime.UTC(), Quiesced: b.Quiesced,
		ExcludedVolumes: b.Excluded,
	}
	if b.isIncremental() {
		m.Parent = &manifest.Parent{Checkpoint: b.BaseCheckpoint, BackupUID: b.BaseUID}
		if p != nil {
			m.Parent.Directory, m.Parent.ManifestSHA256 = p.directory, p.sha256
		}
	}
	for _, v := range b.Volumes {
		path := filepath.Join(q.Directory, q.fileName(v.Name))
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		done, _ := s.complete(v.Name)
		entry := manifest.Volume{
			Name: v.Name, Type: manifest.Full, FullReason: v.FullReason, VirtualBytes: uint64(done.Bytes), MovedBytes: allocatedBytes(info),
			File: filepath.Base(path), SHA256: done.SHA256,
		}
		if v.Incremental {
			entry.Type, entry.FullReason = manifest.Incremental, ""
		}
		m.Volumes = append(m.Volumes, entry)
	}
	text, err := manifest.Encode(m)
	if err != nil {
		return nil, err
	}
	return &m, durable.Write(filepath.Join(q.Directory, manifestName), text)
}

// allocatedBytes returns how much space a file takes.
func allocatedBytes(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Blocks) * 512 // stat(2): in units of 512 bytes
	}
	return uint64(info.Size())
}

// hashFile returns the SHA-256 of a file.
func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	hash := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := f.Read(buf)
		hash.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(hash.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}
