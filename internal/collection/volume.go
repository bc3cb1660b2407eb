package collection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// regionBytes is how much an interruption makes Collect fetch again, at most: a frame. Very large disks have longer
	// regions, because mostRegions bounds the journal.
	regionBytes = export.MaxChunkBytes
	mostRegions = 1 << 20
)

// collectVolume fetches a volume into its file, or goes on with that.
func (q *Request) collectVolume(ctx context.Context, s *state, p *parent, v Volume) (VolumeResult, error) {
	final := filepath.Join(q.Directory, q.fileName(v.Name))
	r := &volumeReader{request: q, volume: v, partial: final + partialSuffix, result: VolumeResult{Name: v.Name}}
	done, complete := s.complete(v.Name)
	if !complete {
		if _, err := os.Lstat(final); err == nil {
			return r.result, errclass.Errorf(errclass.Conflict, "%s exists, and is not of this backup: choose another directory", final)
		}
		if err := r.fetch(ctx); err != nil {
			return r.result, err
		}
		var err error
		if done, err = r.seal(ctx, p); err != nil {
			return r.result, err
		}
		if err := s.addComplete(v.Name, done); err != nil {
			return r.result, err
		}
	} else {
		r.result.ResumedBytes = done.Bytes
	}
	r.result.DataBytes, r.result.ZeroBytes = done.DataBytes, done.ZeroBytes
	if err := durable.Rename(r.partial, final); err != nil && (!complete || !errors.Is(err, fs.ErrNotExist)) {
		return r.result, err
	}
	if err := durable.Remove(r.partial + disk.JournalSuffix); err != nil {
		return r.result, err
	}
	q.Progress(Progress{Volume: v.Name, Phase: PhaseDone, ProcessedBytes: done.DataBytes, TotalBytes: done.DataBytes})
	return r.result, nil
}

// volumeReader fetches a volume.
type volumeReader struct {
	request *Request
	volume  Volume
	partial string
	// tag is the entity tag of the point in time.
	tag string
	// data and zeroes are what the map has.
	data, zeroes extent.Set
	// clusterBytes is that of disk.Layer.
	clusterBytes int64
	target       disk.Target
	journal      *disk.Journal
	// regionBytes is the journal's, and finished how many regions are complete, from the beginning.
	regionBytes int64
	finished    int
	// processed of total bytes of data are there.
	processed, total int64
	result           VolumeResult
}

// fetch writes the volume into the partial file, and closes it.
func (r *volumeReader) fetch(ctx context.Context) error {
	if err := r.readMap(ctx); err != nil {
		return fmt.Errorf("read the map: %w", err)
	}
	if err := r.openTarget(ctx); err != nil {
		return err
	}
	err := r.readStream(ctx)
	if err == nil {
		err = r.target.Sync(ctx)
	}
	if err != nil {
		// What was fetched stays, also after Ctrl-C.
		err = errors.Join(err, r.journal.Save(context.WithoutCancel(ctx), r.target))
	}
	return errors.Join(err, r.target.Close())
}

// readMap reads what there is to fetch.
func (r *volumeReader) readMap(ctx context.Context) error {
	var bounds []int64
	var changed extent.Set
	stats, err := r.request.Client.Regions(ctx, endpoint.MapRequest{URL: r.volume.Map, Bytes: r.volume.Bytes}, func(region export.Region) bool {
		if region.Kind == export.Zero {
			r.zeroes.Append(region.Extent)
		} else {
			r.data.Append(region.Extent)
		}
		changed.Append(region.Extent)
		return true
	})
	if err != nil {
		return err
	}
	if stats.Bytes <= 0 || stats.Tag == "" {
		return errclass.Errorf(errclass.Invalid, "the endpoint does not tell the size or the point in time of the disk")
	}
	r.tag, r.volume.Bytes, r.total = stats.Tag, stats.Bytes, r.data.Bytes()
	if !r.volume.Incremental {
		return nil
	}
	for e := range changed.All() {
		bounds = append(bounds, e.Offset)
		if e.End() < stats.Bytes {
			bounds = append(bounds, e.End())
		}
	}
	if r.clusterBytes = disk.LayerClusterBytes(bounds...); r.clusterBytes == 0 {
		return errclass.Errorf(errclass.Invalid, "its changes do not begin and end at sectors of 512 bytes, which a qcow2 image cannot have")
	}
	return nil
}

// openTarget opens the partial file, and finds how far it has come.
func (r *volumeReader) openTarget(ctx context.Context) (err error) {
	r.regionBytes = regionBytes
	for r.volume.Bytes/r.regionBytes >= mostRegions {
		r.regionBytes *= 2
	}
	token := fmt.Sprintf("pull %s %s %s %d", r.request.Backup.UID, r.volume.Name, r.tag, r.clusterBytes)
	if r.journal, err = disk.NewJournal(disk.JournalOptions{Token: token, RegionBytes: r.regionBytes}); err != nil {
		return err
	}
	o := disk.TargetOptions{Format: r.request.Format, DataBytes: r.total, Journal: r.journal}
	if r.volume.Incremental {
		o.Layer = &disk.Layer{ClusterBytes: r.clusterBytes}
	}
	if r.target, err = disk.OpenTarget(ctx, r.partial, r.volume.Bytes, o); err != nil {
		return err
	}
	for r.journal.Done(r.finished) {
		r.finished++
	}
	r.result.ResumedBytes = r.position()
	for e := range r.data.Within(extent.Extent{Length: r.position()}) {
		r.processed += e.Length
	}
	return nil
}

// position is the offset up to which the file is complete.
func (r *volumeReader) position() int64 {
	return min(int64(r.finished)*r.regionBytes, r.volume.Bytes)
}

func (r *volumeReader) readStream(ctx context.Context) error {
	address, err := endpoint.StreamURL(r.volume.Data)
	if err != nil {
		return err
	}
	r.report(PhasePulling)
	r.result.Stats, err = r.request.Client.Stream(ctx, endpoint.StreamRequest{
		URL: address, Tag: r.tag, Volumes: []endpoint.Position{{Volume: r.volume.Name, From: r.position()}}, Begin: r.begin,
		Chunk: func(_ int, c export.Chunk) error { return r.write(ctx, c) },
	})
	if err != nil {
		return err
	}
	r.finish(ctx, r.volume.Bytes)
	return nil
}

// begin checks that the stream is of the disk that the backup describes.
func (r *volumeReader) begin(_ string, volumes []stream.Volume) error {
	if v := volumes[0]; v.Bytes != r.volume.Bytes || v.Incremental != r.volume.Incremental {
		return errclass.Errorf(errclass.Conflict, "the endpoint has a disk of %d bytes, incremental %v, and not one of %d bytes, incremental %v", v.Bytes, v.Incremental, r.volume.Bytes, r.volume.Incremental)
	}
	return nil
}

func (r *volumeReader) write(ctx context.Context, c export.Chunk) error {
	var err error
	if c.Data == nil {
		err = r.target.Zero(ctx, c.Extent)
	} else {
		err = r.target.WriteAt(ctx, c.Data, c.Offset)
		r.processed += c.Length
	}
	if err != nil {
		return err
	}
	r.finish(ctx, c.End())
	r.report(PhasePulling)
	return nil
}

// finish notes that everything before an offset is there.
func (r *volumeReader) finish(ctx context.Context, before int64) {
	for ; int64(r.finished) < before/r.regionBytes || before == r.volume.Bytes && r.position() < before; r.finished++ {
		r.journal.Finished(ctx, r.target, r.finished)
	}
}

func (r *volumeReader) report(phase string) {
	r.request.Progress(Progress{Volume: r.volume.Name, Phase: phase, ProcessedBytes: min(r.processed, r.total), TotalBytes: r.total})
}

// seal names the backing file of an incremental, and hashes the file.
func (r *volumeReader) seal(ctx context.Context, p *parent) (completeVolume, error) {
	if r.volume.Incremental && p != nil {
		backing, format := p.backing(r.volume.Name)
		if err := disk.SetBacking(ctx, r.partial, backing, format); err != nil {
			return completeVolume{}, err
		}
	}
	if err := durable.Sync(r.partial); err != nil {
		return completeVolume{}, err
	}
	r.report(PhaseHashing)
	sum, err := hashFile(ctx, r.partial)
	return completeVolume{Bytes: r.volume.Bytes, SHA256: sum, DataBytes: r.total, ZeroBytes: r.zeroes.Bytes()}, err
}
