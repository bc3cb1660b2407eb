package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/varvebackup/varve/box/internal/cgroup"
	"github.com/varvebackup/varve/box/internal/hostnet"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/loop"
	"github.com/varvebackup/varve/box/internal/netplan"
	"github.com/varvebackup/varve/box/internal/xfs"
)

// Down removes every trace of the box: processes, mounts, loop devices, control groups, the bridge and the directory.
// After an interruption it can be run again.
func Down(ctx context.Context, dir layout.Box, p *Progress) error {
	unlock, err := lockBox(ctx, dir, false)
	if isMissing(err) {
		p.Say("there is no box in %s", dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return takeDown(ctx, dir, p)
}

func takeDown(ctx context.Context, dir layout.Box, p *Progress) error {
	if _, err := os.Stat(dir.State()); isMissing(err) {
		if err := onlyRemains(dir); err != nil {
			return err
		}
	} else if err := wipeBox(ctx, dir); err != nil {
		return err
	}
	if err := os.RemoveAll(string(dir)); err != nil {
		return fmt.Errorf("remove the box's directory: %w", err)
	}
	p.Say("the box in %s is gone", dir)
	return nil
}

// onlyRemains fails if a directory without a box's state contains anything that no box leaves there: then it belongs
// to someone else. An interrupted box leaves images (after wipe) or an unfinished state.
func onlyRemains(dir layout.Box) error {
	entries, err := os.ReadDir(string(dir))
	if err != nil {
		return fmt.Errorf("look into the box's directory: %w", err)
	}
	for _, e := range entries {
		ours := e.Name() == filepath.Base(dir.Images()) || strings.HasPrefix(e.Name(), "."+filepath.Base(dir.State())+".")
		if !ours {
			return fmt.Errorf("%s holds %s and no box: give another --dir", dir, e.Name())
		}
	}
	return nil
}

// wipeBox removes the box, except its directory and the images in it. It removes the state last, so that it can be run again.
func wipeBox(ctx context.Context, dir layout.Box) error {
	st, err := loadState(dir)
	if errors.Is(err, errStateDamaged) {
		st, err = salvageState(dir)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(st.removeOutside(ctx, dir), noMounts(dir)); err != nil {
		return err
	}
	entries, err := os.ReadDir(string(dir))
	if err != nil {
		return fmt.Errorf("clear the box's directory: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(string(dir), e.Name())
		if path == dir.Images() || path == dir.State() {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("clear the box's directory: %w", err)
		}
	}
	if err := os.Remove(dir.State()); err != nil {
		return fmt.Errorf("clear the box's directory: %w", err)
	}
	return nil
}

// removeOutside removes everything of the box that exists outside its directory.
func (s *State) removeOutside(ctx context.Context, dir layout.Box) error {
	for i := 1; i <= netplan.MaxNodes; i++ {
		if err := s.stopNode(ctx, dir, i); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	return errors.Join(
		cgroup.Remove(ctx, dir.Cgroup(), killProcess),
		loop.DetachTree(dir.SharedVolumes()),
		xfs.Remove(ctx, dir.VolumeImage(), dir.Volumes()),
		hostnet.RemoveBridge(s.Bridge, string(dir)),
	)
}

// salvageState finds what a box with a damaged state owns: the bridge by its alias. The rest follows from the directory.
func salvageState(dir layout.Box) (*State, error) {
	bridge, err := hostnet.Owned(string(dir))
	if err != nil {
		return nil, err
	}
	return &State{Bridge: bridge}, nil
}

// noMounts fails if anything is mounted below the directory. The box mounts only its volumes in the host's namespace,
// and has unmounted them, so it is someone else's data, which removing the directory would delete.
func noMounts(dir layout.Box) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, string(dir)+"/"), false
	})
	if err != nil {
		return fmt.Errorf("look for mounts below %s: %w", dir, err)
	}
	for _, m := range mounts {
		return fmt.Errorf("%s is mounted and not by the box: unmount it, then run `box down` again", m.Mountpoint)
	}
	return nil
}
