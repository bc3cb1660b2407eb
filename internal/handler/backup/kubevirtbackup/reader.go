package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// superviseReader looks after a backup that its launcher serves.
func (r *Reconciler) superviseReader(ctx context.Context, s *gathered) (ctrl.Result, error) {
	connecting := r.connectReader(ctx, s)
	result, err := r.mirrorProgress(ctx, s)
	return result, errors.Join(connecting, err)
}

// measurePull counts what the launcher reports of a backup in pull mode. The first report comes before the launcher is told
// where to offer the backup, so that nothing has been read by then unless another handler has told it.
func (r *Reconciler) measurePull(s *gathered) {
	job := s.job()
	if job == nil || !s.backup.Spec.IsPull() {
		return
	}
	r.Measures.Pulled(client.ObjectKeyFromObject(s.backup), s.backup.UID, metric.Pull{
		Machine: s.backup.Status.SourceName, Serving: job.GetPhase() == launcherpb.Backup_SERVING, ReadBytes: job.GetProcessedBytes(),
		Sessions: job.GetTunnel().GetSessions(), FirstSessions: job.GetTunnel().GetFirstSessions(), Connected: hasReaders(s.backup, job.GetTunnel()),
		ScratchUsed: job.GetScratchUsedBytes(), ScratchFree: job.GetScratchFreeBytes(),
	})
}

// hasReaders reports whether everybody is connected who is to read a backup. Mover pods may all wait for a free place, and then nobody is.
func hasReaders(b *backupv1.VirtualMachineBackup, tunnel *launcherpb.Tunnel) bool {
	return tunnel.GetConnected() || b.Spec.IsPulledByDataUploads() && len(b.Status.PullTunnels) == 0
}

// connectReader tells the launcher where to offer the backup, once for each place, and where not to offer it any more. The
// launcher connects again by itself. A far end that it cannot be told of does not keep it from being told of the others.
func (r *Reconciler) connectReader(ctx context.Context, s *gathered) error {
	wanted := farEndsOf(s.backup)
	r.assumeTold(s.backup)
	var failed []error
	for _, volume := range r.toldInVain(s.backup.UID, wanted) {
		failed = append(failed, r.endOffer(ctx, s, volume))
	}
	var token []byte
	for _, end := range wanted {
		if r.isConnected(s, end) {
			continue
		}
		if token == nil {
			var err error
			if token, err = r.readToken(ctx, s.backup); err != nil {
				return errors.Join(append(failed, r.reportTokenMissing(s, err))...)
			}
		}
		failed = append(failed, r.tellFarEnd(ctx, s, end, token))
	}
	return errors.Join(failed...)
}

// farEndsOf returns where a backup is to be offered: all volumes, which is the first without a name, and single ones. The launcher
// is told of no volume that the backup does not include.
func farEndsOf(b *backupv1.VirtualMachineBackup) (ends []backupv1.VolumeTunnel) {
	if t := b.Status.PullTunnel; t != nil {
		ends = append(ends, backupv1.VolumeTunnel{PullTunnel: *t})
	}
	for _, t := range b.Status.PullTunnels {
		if slices.ContainsFunc(b.Status.IncludedVolumes, func(v backupv1.IncludedVolume) bool { return v.Name == t.Volume }) {
			ends = append(ends, t)
		}
	}
	return ends
}

// reportTokenMissing tells of a token that is not on the node, and returns why the launcher could not be told.
func (r *Reconciler) reportTokenMissing(s *gathered, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		r.Events.Eventf(s.backup, nil, corev1.EventTypeWarning, "TunnelTokenMissing", "Connect",
			"The kubelet has not brought Secret %s to the node.", s.backup.Status.PullTunnelSecret)
	}
	return fmt.Errorf("read the tunnel's token: %w", err)
}

func (r *Reconciler) tellFarEnd(ctx context.Context, s *gathered, end backupv1.VolumeTunnel, token []byte) error {
	_, err := s.launcher.RPC().ConnectBackup(ctx, &launcherpb.ConnectBackupRequest{
		Uid: string(s.backup.UID), Volume: end.Volume,
		Address: end.Address, ServerName: end.ServerName, Authorities: []byte(end.Authorities), Token: token,
	})
	if err != nil {
		return fmt.Errorf("have the launcher connect to %s%s: %w", end.Address, ofVolume(end.Volume), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connected[s.backup.UID][end.Volume] = farEnd{end.PullTunnel, r.Clock.Now()}
	return nil
}

// endOffer has the launcher offer a volume nowhere any more.
func (r *Reconciler) endOffer(ctx context.Context, s *gathered, volume string) error {
	_, err := s.launcher.RPC().ConnectBackup(ctx, &launcherpb.ConnectBackupRequest{Uid: string(s.backup.UID), Volume: volume})
	if err != nil {
		return fmt.Errorf("have the launcher end its connection%s: %w", ofVolume(volume), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.connected[s.backup.UID], volume)
	return nil
}

// ofVolume returns the words that say which volume a far end is for; none for all volumes.
func ofVolume(volume string) string {
	if volume == "" {
		return ""
	}
	return " for volume " + volume
}

// farEnd is where a launcher was told to offer a backup or a volume of it, and when.
type farEnd struct {
	tunnel backupv1.PullTunnel
	at     time.Time
}

// tellAgain is the pause before a launcher that is not connected is told again: it may have an old token.
const tellAgain = 30 * time.Second

func (r *Reconciler) isConnected(s *gathered, end backupv1.VolumeTunnel) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	told, ok := r.connected[s.backup.UID][end.Volume]
	if !ok || told.tunnel != end.PullTunnel {
		return false
	}
	return s.job().GetTunnel().GetError() == "" || r.Clock.Since(told.at) < tellAgain
}

// assumeTold prepares what is remembered of a backup. If DataUploads read it, a handler before this one may have told the launcher
// of a far end of any volume, which may be gone meanwhile.
func (r *Reconciler) assumeTold(b *backupv1.VirtualMachineBackup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected == nil {
		r.connected = map[types.UID]map[string]farEnd{}
	}
	if r.connected[b.UID] != nil {
		return
	}
	told := map[string]farEnd{}
	if b.Spec.IsPulledByDataUploads() {
		for _, v := range b.Status.IncludedVolumes {
			told[v.Name] = farEnd{}
		}
	}
	r.connected[b.UID] = told
}

// toldInVain returns the volumes, in order, of which the launcher was told a far end that is not wanted any more.
func (r *Reconciler) toldInVain(uid types.UID, wanted []backupv1.VolumeTunnel) (volumes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for volume := range r.connected[uid] {
		if !slices.ContainsFunc(wanted, func(end backupv1.VolumeTunnel) bool { return end.Volume == volume }) {
			volumes = append(volumes, volume)
		}
	}
	slices.Sort(volumes)
	return volumes
}

// readToken returns the tunnel's token. Handlers may not read Secrets: the kubelet brings it to the backup's attachment pod.
func (r *Reconciler) readToken(ctx context.Context, b *backupv1.VirtualMachineBackup) ([]byte, error) {
	source, err := r.findTarget(ctx, b)
	if err != nil {
		return nil, err
	}
	return r.Secrets.ReadSecret(source.Pod, layout.TunnelVolume, podspec.TokenKey)
}
