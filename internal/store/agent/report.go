package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/internal/store/names"
)

// recallReport reads the InstanceManager, or makes it, unless its content is known. The failures that it has count on.
func (a *agent) recallReport(ctx context.Context) error {
	if a.written.ResourceVersion != "" {
		return nil
	}
	im := longhornv1.InstanceManager{}
	err := a.live.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Node}, &im)
	if apierrors.IsNotFound(err) {
		im = longhornv1.InstanceManager{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Node}}
		im.Spec = longhornv1.InstanceManagerSpec{NodeID: a.Node, DataEngine: longhornv1.DataEngineV2}
		err = a.live.Create(ctx, &im)
	}
	if err != nil {
		return fmt.Errorf("read or make the instance manager %s: %w", a.Node, err)
	}
	a.written = im
	for _, c := range im.Status.BackingImages {
		key := copyKey{c.DiskUUID, c.UUID}
		if c.State == longhornv1.StateFailed && a.copies[key] == nil {
			a.copies[key] = &copyState{
				failure: c.Message, refused: c.RefusedChecksum, gaveUp: c.DiskFull, failedAt: a.Clock.Now(), recalled: true,
			}
		}
	}
	return nil
}

// setReported replaces what is known of the copies, and tells those who watch if it is something new.
func (a *agent) setReported(reports map[copyKey]longhornv1.BackingImageV2CopyInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if maps.Equal(a.reported, reports) {
		return
	}
	for key, info := range reports {
		a.gotReady = a.gotReady || info.State == longhornv1.StateReady && a.reported[key].State != longhornv1.StateReady
	}
	a.reported = reports
	close(a.reportNew)
	a.reportNew = make(chan struct{})
}

// takeReady says whether a copy has got ready since it said so last.
func (a *agent) takeReady() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	ready := a.gotReady
	a.gotReady = false
	return ready
}

// ListCopies implements [peer.Copies].
func (a *agent) ListCopies() ([]longhornv1.BackingImageV2CopyInfo, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.SortedFunc(maps.Values(a.reported), func(x, y longhornv1.BackingImageV2CopyInfo) int {
		return cmp.Or(cmp.Compare(x.DiskUUID, y.DiskUUID), cmp.Compare(x.Name, y.Name))
	})
	return all, a.reportNew
}

// writeReport writes the InstanceManager if something has changed, or if that was long ago. Progress alone waits for
// progressInterval.
func (a *agent) writeReport(ctx context.Context) error {
	all, _ := a.ListCopies()
	copies := map[string]longhornv1.BackingImageV2CopyInfo{}
	for _, c := range all {
		copies[copyKey{c.DiskUUID, c.UUID}.String()] = c
	}
	before := a.written.Status
	since := a.Clock.Since(a.writtenAt)
	sameCopy := func(x, y longhornv1.BackingImageV2CopyInfo) bool {
		if since < progressInterval {
			x.Progress, x.Size = y.Progress, y.Size
		}
		return x == y
	}
	same := before.IP == a.PodIP && before.CurrentState == longhornv1.ManagerRunning &&
		maps.EqualFunc(copies, before.BackingImages, sameCopy)
	if same && since < heartbeatInterval {
		return nil
	}
	next := a.written.DeepCopy()
	now := metav1.NewMicroTime(a.Clock.Now())
	next.Status = longhornv1.InstanceManagerStatus{
		CurrentState: longhornv1.ManagerRunning, IP: a.PodIP, HeartbeatTime: &now, BackingImages: copies,
	}
	if err := a.live.Status().Update(ctx, next); err != nil {
		a.written.ResourceVersion = "" // read it again
		return fmt.Errorf("write the status of instance manager %s: %w", a.Node, err)
	}
	a.written, a.writtenAt = *next, a.Clock.Now()
	return nil
}

// updateMetrics tells the metrics what was found and reported. A disk that is only slow keeps its earlier values. A
// disk that does not answer has no sizes.
func (a *agent) updateMetrics(states []*diskState) {
	if a.Measures == nil {
		return
	}
	before := a.measured
	a.measured = map[string]metric.Disk{}
	disksByUUID := map[string]string{}
	for _, s := range states {
		if d, ok := before[s.name]; ok && s.slow {
			a.measured[s.name] = d
			continue
		}
		c := s.condition()
		d := metric.Disk{
			Name: s.name, Reason: c.Reason, Ready: c.Status == metav1.ConditionTrue, Reserved: s.spec.StorageReserved,
		}
		if s.open != nil {
			disksByUUID[string(s.open.UUID)] = s.name
			d.Known, d.Capacity, d.Available = true, s.usage.Capacity, s.usage.Available
			d.Provisioned, d.Images = scheduledBytes(s.objects), s.images
			if s.scrubbed != nil {
				d.Scrubbed, d.BadPieces, d.RepairedPieces = true, s.scrubbed.BadPieces, s.scrubbed.RepairedPieces
			}
			for _, o := range s.objects {
				if _, ok := volumeOf(o); ok {
					d.Volumes++
				}
			}
		}
		a.measured[s.name] = d
	}
	disks := slices.Collect(maps.Values(a.measured))
	copies, _ := a.ListCopies()
	a.Measures.Looked(disks, copies, disksByUUID, a.writtenAt)
}

// measureImages returns what the metrics say of the copies on a disk. Those that no image has are left out, because the
// name of an image may be used again.
func measureImages(s *diskState, images []longhornv1.BackingImage) (all []metric.Image) {
	for _, o := range s.objects {
		name, uuid, ok := names.IsImage(o.Name)
		if !ok || o.Kind != disk.KindImage || findImage(images, name, uuid) == nil {
			continue
		}
		i := metric.Image{Name: name, Damaged: o.State == disk.StateDamaged}
		if s.scrubbed != nil {
			i.LastRead = s.scrubbed.LastRead[o.UID]
		}
		all = append(all, i)
	}
	return all
}

func (a *agent) countFailure(operation string) {
	if a.Measures != nil {
		a.Measures.Failed(operation)
	}
}
