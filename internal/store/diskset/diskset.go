// Package diskset has the disks of one node that are open. The agent opens and closes them; the CSI driver uses them.
package diskset

import (
	"slices"
	"strings"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Disk is an open disk of the node.
type Disk struct {
	disk.Disk

	// Name is the disk's in spec.disks of the node.
	Name string
	UUID disk.UID
	// Path is the directory as this process sees it.
	Path string
}

// Set is a set of disks. The zero value is an empty one. It is safe for concurrent use.
type Set struct {
	mu    sync.RWMutex
	disks map[disk.UID]Disk
}

// Put adds a disk, or replaces the one with its UUID.
func (s *Set) Put(d Disk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disks == nil {
		s.disks = map[disk.UID]Disk{}
	}
	s.disks[d.UUID] = d
}

// Remove removes the disk with a UUID, if it is there.
func (s *Set) Remove(uuid disk.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.disks, uuid)
}

// Find returns the disk with a UUID. An error is of class NotFound.
func (s *Set) Find(uuid disk.UID) (Disk, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	d, ok := s.disks[uuid]
	if !ok {
		return Disk{}, errclass.Errorf(errclass.NotFound, "disk %s is not open on this node", uuid)
	}
	return d, nil
}

// All returns the disks, sorted by their names.
func (s *Set) All() []Disk {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []Disk
	for _, d := range s.disks {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Disk) int { return strings.Compare(a.Name, b.Name) })
	return all
}
