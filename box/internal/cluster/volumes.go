package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/xfs"
)

// ensureVolumes mounts the file system of the volumes on the host, before the nodes start: they bind the mount. A node
// that is running keeps the file system, whatever happens to the mount on the host.
func ensureVolumes(ctx context.Context, dir layout.Box, nodes int) error {
	for i := 1; i <= nodes; i++ {
		former, err := filepath.Glob(filepath.Join(dir.Node(i).FormerVolumes(), "*.img"))
		if err != nil {
			return err
		}
		if len(former) > 0 {
			return fmt.Errorf("%s is a volume of an earlier version of the box, which had no snapshots: run `box down`, then `box up`", former[0])
		}
	}
	return xfs.Ensure(ctx, dir.VolumeImage(), dir.Volumes())
}
