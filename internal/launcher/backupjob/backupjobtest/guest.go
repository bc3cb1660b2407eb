// Package backupjobtest has a fake guest, for tests of backups.
package backupjobtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/varvebackup/varve/internal/domain"
)

// Guest is a fake of the domain, to test the order of calls and failures that are rare with a real one.
// Everything that depends on libvirt's behavior is tested with the real one (cmd/varve-launcher).
type Guest struct {
	mu    sync.Mutex
	Calls []string
	// Fail maps a call to its error.
	Fail map[string]error
	// On maps a call to a function that runs when the call is made.
	On map[string]func()

	State   domain.Info
	JobInfo domain.JobInfo
	Dirty   map[string]uint64
	Frozen  bool
	// FileSystems is how many the agent can freeze.
	FileSystems int
	// ThawedBefore is how many file systems somebody thaws without the agent.
	ThawedBefore int
	Targets      []string
	// Begun is the last backup that began.
	Begun domain.Backup
	// BeginTakes is how long libvirt takes to begin. libvirt continues when its caller has given up, and refuses an
	// abort until it has begun.
	BeginTakes time.Duration
}

// NewGuest returns a guest that runs, with an agent that freezes two file systems.
func NewGuest() *Guest {
	return &Guest{
		FileSystems: 2, Fail: map[string]error{}, On: map[string]func(){},
		State: domain.Info{State: domain.StateRunning},
	}
}

func (f *Guest) call(name string) error {
	f.mu.Lock()
	f.Calls = append(f.Calls, name)
	err, on := f.Fail[name], f.On[name]
	f.mu.Unlock()
	if on != nil {
		on()
	}
	return err
}

// Set changes the guest while a backup may be using it.
func (f *Guest) Set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *Guest) Info(context.Context) (domain.Info, error) {
	err := f.call("Info")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.State, err
}

func (f *Guest) Resume(context.Context) error { return f.call("Resume") }

func (f *Guest) FSFrozen(context.Context, time.Duration) (bool, error) {
	err := f.call("FSFrozen")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Frozen, err
}

func (f *Guest) Freeze(context.Context, time.Duration) (int, error) {
	err := f.call("Freeze")
	f.Set(func() { f.Frozen = true }) // a failed freeze may have frozen something
	return f.FileSystems, err
}

func (f *Guest) Thaw(context.Context) (thawed int, err error) {
	if err = f.call("Thaw"); err != nil {
		return 0, err
	}
	f.Set(func() {
		if f.Frozen {
			thawed = f.FileSystems - f.ThawedBefore
		}
		f.Frozen = false
	})
	return thawed, nil
}

func (f *Guest) PrepareBackup(_ context.Context, b domain.Backup) (domain.BeginFunc, error) {
	if err := f.call("PrepareBackup"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := f.call("BeginBackup"); err != nil {
			return err
		}
		if err := f.takeTime(ctx); err != nil {
			return err
		}
		f.Set(func() {
			f.JobInfo, f.Begun = domain.JobInfo{Active: true, Known: true, TotalBytes: 100}, b
			for _, d := range b.Disks {
				f.Targets = append(f.Targets, d.Target)
			}
		})
		return nil
	}, nil
}

// takeTime waits until libvirt has begun or the caller gives up.
func (f *Guest) takeTime(ctx context.Context) error {
	if f.BeginTakes == 0 {
		return nil
	}
	f.Set(func() { f.JobInfo, f.Fail["AbortBackup"] = domain.JobInfo{Active: true, Known: true}, domain.ErrBusy })
	begun := time.NewTimer(f.BeginTakes)
	defer begun.Stop()
	time.AfterFunc(f.BeginTakes, func() { f.Set(func() { delete(f.Fail, "AbortBackup") }) })
	select {
	case <-begun.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Guest) BackupJob(context.Context) (domain.JobInfo, error) {
	err := f.call("BackupJob")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.JobInfo, err
}

func (f *Guest) AbortBackup(context.Context) error {
	err := f.call("AbortBackup")
	if err == nil {
		f.Set(func() {
			f.JobInfo = domain.JobInfo{Known: true}
			if f.Begun.Socket == "" { // a pull backup succeeds by this
				f.JobInfo.Err = errors.New("canceled")
			}
		})
	}
	return err
}

func (f *Guest) DirtyBytes(context.Context, string) (map[string]uint64, error) {
	err := f.call("DirtyBytes")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Dirty, err
}

func (f *Guest) DeleteCheckpoint(_ context.Context, name string) error {
	return f.call("DeleteCheckpoint " + name)
}

// Count returns how often a call was made.
func (f *Guest) Count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.Calls {
		if c == name {
			n++
		}
	}
	return n
}
