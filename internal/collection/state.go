package collection

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
)

const (
	stateName     = "pull.json"
	stateVersion  = 1
	partialSuffix = ".partial"
)

// state is pull.json: what is being collected in a directory.
type state struct {
	Version   int         `json:"version"`
	BackupUID string      `json:"backupUID"`
	Format    disk.Format `json:"format"`
	// Parent is the parent's directory, which the images that are complete name.
	Parent string `json:"parent,omitempty"`
	// Volumes are those whose content is complete. Their files may still have the suffix.
	Volumes map[string]completeVolume `json:"volumes"`

	path string
	mu   sync.Mutex
}

// completeVolume is a volume whose file is complete.
type completeVolume struct {
	// Bytes is the size of the disk.
	Bytes     int64  `json:"bytes"`
	SHA256    string `json:"sha256"`
	DataBytes int64  `json:"dataBytes"`
	ZeroBytes int64  `json:"zeroBytes"`
}

// openState reads what an interrupted Collect has left, or begins.
func (q *Request) openState(p *parent) (*state, error) {
	s := &state{Version: stateVersion, BackupUID: q.Backup.UID, Format: q.Format, Volumes: map[string]completeVolume{}, path: filepath.Join(q.Directory, stateName)}
	if p != nil {
		s.Parent = p.directory
	}
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, s.save()
	}
	if err != nil {
		return nil, err
	}
	var found state
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, errclass.Errorf(errclass.Conflict, "%s cannot be read: %w; remove the directory to start anew", s.path, err)
	}
	switch {
	case found.Version != stateVersion:
		return nil, errclass.Errorf(errclass.Conflict, "%s has version %d, and this program reads %d", s.path, found.Version, stateVersion)
	case found.BackupUID != s.BackupUID:
		return nil, errclass.Errorf(errclass.Conflict, "%s has half of another backup (UID %s): choose another directory, or remove it", q.Directory, found.BackupUID)
	case found.Format != s.Format || found.Parent != s.Parent:
		return nil, errclass.Errorf(errclass.Conflict, "%s has half of this backup as %s with parent %q: go on with the same format and parent, or remove it", q.Directory, found.Format, found.Parent)
	}
	if found.Volumes != nil {
		s.Volumes = found.Volumes
	}
	return s, nil
}

// save makes the state durable. The caller holds mu, if there are others.
func (s *state) save() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.Write(s.path, append(text, '\n')); err != nil {
		return fmt.Errorf("note what is complete: %w", err)
	}
	return nil
}

// complete returns the entry of a volume whose content is complete.
func (s *state) complete(volume string) (completeVolume, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.Volumes[volume]
	return v, ok
}

// addComplete notes that a volume's content is complete.
func (s *state) addComplete(volume string, v completeVolume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Volumes[volume] = v
	return s.save()
}
