package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/reflink"
)

// look is one look at a disk of spec.disks, in a goroutine of its own. Each disk has one look at a time, so a disk that
// hangs costs one goroutine.
type look struct {
	call *diskguard.Call
	done chan struct{}
	// What it found, valid when done is closed. opened is the disk if it was opened.
	opened  *openDisk
	usage   disk.Usage
	objects []disk.Object
	err     error
}

func (l *look) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// startLook begins to look at a disk of spec.disks, unless an earlier look still does. It opens the disk if it is not
// open.
func (a *agent) startLook(ctx context.Context, s *diskState) error {
	if earlier := a.looks[s.name]; earlier != nil && !earlier.isDone() {
		return nil
	} else if earlier != nil {
		a.adoptDisk(s.name, earlier) // what it has found is old
	}
	d := a.disks[s.name]
	if d != nil && d.specPath != s.spec.Path {
		if err := a.closeDisk(ctx, d); err != nil {
			return fmt.Errorf("spec.disks[%s].path was %s, and that disk is in use: %w", s.name, d.specPath, err)
		}
		d = nil
	}
	guard := a.guards[s.name]
	if guard == nil {
		guard = diskguard.New(a.diskClock)
		a.guards[s.name] = guard
	}
	l := &look{call: guard.Start("say what it has"), done: make(chan struct{})}
	a.looks[s.name] = l
	name, spec, known := s.name, s.spec, a.known[s.name]
	go func() {
		defer func() {
			givenUp := l.call.End()
			close(l.done)
			if givenUp { // nobody waits for it
				a.wakeUp()
			}
		}()
		if d == nil {
			if d, l.err = a.openDisk(ctx, name, spec, known, guard); l.err != nil {
				return
			}
			l.opened = d
		}
		l.err = l.readDisk(ctx, d)
	}()
	return nil
}

// readDisk finds out what an open disk is like.
func (l *look) readDisk(ctx context.Context, d *openDisk) error {
	found, err := reflink.ReadUUID(d.Path)
	if err == nil && found != d.UUID {
		err = errclass.Errorf(errclass.Conflict, "%s has the disk %s now", d.specPath, found)
	}
	reflink.TouchDevice(d.Path)
	if err == nil {
		l.usage, err = d.files.Usage(ctx)
	}
	if err == nil {
		l.objects, err = d.files.List(ctx)
	}
	return err
}

// awaitLooks waits for the looks that have begun, at most as long as lookPatience. It does not wait for those that are
// late.
func (a *agent) awaitLooks(ctx context.Context) {
	timer := a.diskClock.NewTimer(a.lookPatience)
	defer timer.Stop()
	for _, l := range a.looks {
		if l.call.IsLate() {
			continue
		}
		select {
		case <-l.done:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// finishLook takes over what a look has found. An error says why the disk cannot be used.
func (a *agent) finishLook(ctx context.Context, s *diskState) error {
	l := a.looks[s.name]
	if !l.isDone() {
		if !l.call.IsLate() {
			s.slow = true
			return nil
		}
		if err := l.call.GiveUp(); err != nil {
			return err
		}
		<-l.done // in this moment
	}
	a.adoptDisk(s.name, l)
	d := a.disks[s.name]
	switch {
	case d == nil:
		return l.err
	case d.specPath != s.spec.Path: // which has changed during the look
		s.slow = true
		return nil
	}
	if err := d.guard.Check(); err != nil {
		return err
	}
	if l.err != nil {
		return errors.Join(missingDisk(d.UUID, s.spec.Path, l.err), a.closeDisk(ctx, d))
	}
	s.open, s.usage, s.objects = d, l.usage, l.objects
	return nil
}

// adoptDisk ends a look. If the disk was opened, it is in the set from now on.
func (a *agent) adoptDisk(name string, l *look) {
	delete(a.looks, name)
	d := l.opened
	if d == nil {
		return
	}
	a.disks[name], a.known[name] = d, d.UUID
	a.Disks.Put(d.Disk)
	for _, line := range d.files.Recovered() {
		a.Logger.Warn("the store's disk was not in order", "disk", name, "uuid", d.UUID, "found", line)
	}
}
