package push

import (
	"context"
	"fmt"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

const (
	cluster = domain.TargetClusterBytes
	// spaceMargin, in bytes, is for the manifest, the directories and what the guest writes between the estimate and the begin.
	spaceMargin = 4 << 20
)

// targetBytes returns an upper bound of what a qcow2 file with 64 KiB clusters needs for dataBytes of a disk of
// virtualBytes: the data in whole clusters, an L2 table for each 512 MiB of the disk that has data, 16-bit reference
// counts, the L1 table and the header.
func targetBytes(dataBytes, virtualBytes uint64) uint64 {
	const (
		entries     = cluster / 8 // of an L2 or L1 table
		refcounts   = cluster / 2 // of a refcount block
		fixed       = 4 * cluster // header, refcount table, first refcount block, first L1 cluster
		tableCovers = entries * cluster
	)
	clusters := ceilDiv(min(dataBytes, virtualBytes), cluster)
	tables := min(ceilDiv(virtualBytes, tableCovers), clusters)
	l1 := ceilDiv(ceilDiv(virtualBytes, tableCovers), entries)
	blocks := ceilDiv(clusters+tables+l1+4, refcounts)
	return (clusters+tables+l1+blocks)*cluster + fixed
}

func ceilDiv(n, unit uint64) uint64 { return (n + unit - 1) / unit }

// estimateBytes returns how many bytes the target needs. An incremental volume needs its dirty bytes. The error is a
// *backupjob.Failure with BASE_LOST if a bitmap is unusable.
func (j *job) estimateBytes(ctx context.Context) (uint64, error) {
	dirty, err := j.CountDirty(ctx)
	if err != nil {
		return 0, err
	}
	need := uint64(spaceMargin)
	for _, v := range j.req.Volumes {
		data, err := j.DataBytes(ctx, v, dirty)
		if err != nil {
			return 0, err
		}
		need += targetBytes(data, uint64(j.cfg.Disks[v.Volume].VirtualBytes))
	}
	return need, nil
}

// checkSpace returns nil if the estimate fits.
func checkSpace(need, free uint64) error {
	if need <= free {
		return nil
	}
	return &backupjob.Failure{
		Kind: pb.Backup_INSUFFICIENT_SPACE,
		Message: fmt.Sprintf("the backup needs about %s (%d bytes) and the target has %s (%d bytes) free: delete old backups from it or use a larger claim",
			formatBytes(need), need, formatBytes(free), free),
	}
}

// formatBytes formats a number of bytes with a binary unit.
func formatBytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < 4 {
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[unit])
}
