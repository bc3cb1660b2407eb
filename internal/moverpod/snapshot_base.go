package moverpod

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

// baseSnapshot is a restore point of an earlier CSI snapshot of the same volume.
type baseSnapshot struct {
	point *repository.RestorePoint
	disk  *repository.Disk
	// name is the moment's name in the restore point.
	name   string
	moment datamove.SnapshotMoment
}

func (b *baseSnapshot) describe() string {
	if b == nil {
		return "of a restore point that is gone"
	}
	return b.moment.Snapshot + " of restore point " + b.point.ID
}

// chooseBase returns the latest of a history's restore points that is of a CSI snapshot, or says why changes cannot be counted from it. Both
// are empty if no restore point has the disk. id is the restore point to be, claim the UID of the volume's claim, and now what is stored.
//
// The claim's UID alone does not tell the volume: whoever makes a DataUpload writes it. The handles are the cluster's own record. A handle
// that is there twice shows that the driver uses handles again, so that nobody knows which snapshot it would count from. Of a snapshot that
// is not older than this one, it would be asked for changes backwards in time.
func chooseBase(points []*repository.RestorePoint, id, claim string, now datamove.SnapshotMoment) (base *baseSnapshot, why string) {
	points = slices.DeleteFunc(slices.Clone(points), func(p *repository.RestorePoint) bool { return p.ID == id || !p.HasDisk(datamove.DiskName) })
	if len(points) == 0 {
		return nil, ""
	}
	repository.SortByMaking(points)
	named := map[string]int{now.Snapshot: 1}
	for _, p := range points {
		found := snapshotOf(p)
		if found == nil {
			continue
		}
		base = found
		if found.moment.Driver == now.Driver {
			named[found.moment.Snapshot]++
		}
	}
	if base == nil {
		return nil, "no restore point of this volume is of a CSI snapshot"
	}
	switch m := base.moment; {
	case claim == "" || base.disk.Identity != claim:
		why = "of another claim of this name"
	case m.Driver != now.Driver || m.Volume != now.Volume:
		why = "of another volume: " + m.Volume + " of the CSI driver " + m.Driver
	case named[m.Snapshot] > 1 || named[now.Snapshot] > 1:
		why = "of a snapshot whose handle the storage has given to another one, too"
	case m.Taken == 0 || now.Taken == 0:
		why = "of a snapshot of which nobody knows whether it is older than this one: the CSI driver does not say when it was taken"
	case m.Taken >= now.Taken:
		why = "of a snapshot that is not older than this one"
	default:
		return base, ""
	}
	return nil, "restore point " + base.point.ID + " is " + why
}

// snapshotOf returns what a restore point tells of its CSI snapshot, or nil if it is of none.
func snapshotOf(p *repository.RestorePoint) *baseSnapshot {
	d, err := p.Disk(datamove.DiskName)
	if err != nil {
		return nil
	}
	moment, err := datamove.ParseSnapshotMoment(p.ID, d.Change)
	if err != nil {
		return nil
	}
	return &baseSnapshot{point: p, disk: d, name: d.Change, moment: moment}
}

// zeroSamples is how many granules of what a driver calls unallocated are read, besides the first and the last.
const zeroSamples = 64

// checkZeroSamples reads samples of what a driver says to have no data, and fails with errclass.Corrupt if one has. A driver that leaves data
// out by rule is found out, and its answer is not used: one that knows a volume's own blocks, for example, and not those of the image that the
// volume is a clone of, and where a partition table is. The seed decides which samples are read.
func checkZeroSamples(ctx context.Context, device disk.Source, unallocated extent.Set, seed string) error {
	samples := chooseSamples(unallocated.Bytes(), seed)
	buffer := make([]byte, granuleBytes)
	passed := int64(0)
	for e := range unallocated.All() {
		for len(samples) > 0 && samples[0] < passed+e.Length {
			at := e.Offset + samples[0] - passed
			samples = samples[1:]
			piece := buffer[:min(granuleBytes, e.End()-at)]
			if err := device.ReadAt(ctx, piece, at); err != nil {
				return fmt.Errorf("read a sample of what the driver calls unallocated: %w", err)
			}
			if slices.ContainsFunc(piece, func(b byte) bool { return b != 0 }) {
				return errclass.Errorf(errclass.Corrupt, "the driver says that there is no data in bytes %d to %d, and there is", at, at+int64(len(piece)))
			}
		}
		passed += e.Length
	}
	return nil
}

// chooseSamples returns the offsets of samples among so many bytes, in ascending order: the first granule, the last one, and a random one in
// each of equal parts.
func chooseSamples(total int64, seed string) []int64 {
	granules := (total + granuleBytes - 1) / granuleBytes
	if granules == 0 {
		return nil
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(seed))                  // It never fails.
	random := rand.New(rand.NewPCG(sum.Sum64(), 0)) //nolint:gosec // A driver need not be kept from guessing.
	chosen := []int64{0, granules - 1}
	for i := range min(zeroSamples, granules) {
		from, to := i*granules/zeroSamples, (i+1)*granules/zeroSamples
		if granules <= zeroSamples {
			from, to = i, i+1
		}
		chosen = append(chosen, from+random.Int64N(to-from))
	}
	slices.Sort(chosen)
	chosen = slices.Compact(chosen)
	for i := range chosen {
		chosen[i] *= granuleBytes
	}
	return chosen
}
