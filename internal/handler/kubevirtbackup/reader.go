package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		Sessions: job.GetTunnel().GetSessions(), Connected: job.GetTunnel().GetConnected(),
		ScratchUsed: job.GetScratchUsedBytes(), ScratchFree: job.GetScratchFreeBytes(),
	})
}

// connectReader tells the launcher where to offer the backup, once for each place. The launcher connects again by itself.
func (r *Reconciler) connectReader(ctx context.Context, s *gathered) error {
	end := s.backup.Status.PullTunnel
	if end == nil || r.isConnected(s, *end) {
		return nil
	}
	token, err := r.readToken(ctx, s.backup)
	if errors.Is(err, os.ErrNotExist) {
		r.Events.Eventf(s.backup, nil, corev1.EventTypeWarning, "TunnelTokenMissing", "Connect",
			"The kubelet has not brought Secret %s to the node.", s.backup.Status.PullTunnelSecret)
	}
	if err != nil {
		return fmt.Errorf("read the tunnel's token: %w", err)
	}
	_, err = s.launcher.RPC().ConnectBackup(ctx, &launcherpb.ConnectBackupRequest{
		Uid: string(s.backup.UID), Address: end.Address, ServerName: end.ServerName, Authorities: []byte(end.Authorities), Token: token,
	})
	if err != nil {
		return fmt.Errorf("have the launcher connect to %s: %w", end.Address, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connected == nil {
		r.connected = map[types.UID]farEnd{}
	}
	r.connected[s.backup.UID] = farEnd{*end, r.Clock.Now()}
	return nil
}

// farEnd is where a launcher was told to offer a backup, and when.
type farEnd struct {
	tunnel backupv1.PullTunnel
	at     time.Time
}

// tellAgain is the pause before a launcher that is not connected is told again: it may have an old token.
const tellAgain = 30 * time.Second

func (r *Reconciler) isConnected(s *gathered, end backupv1.PullTunnel) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	told, ok := r.connected[s.backup.UID]
	if !ok || told.tunnel != end {
		return false
	}
	return s.job().GetTunnel().GetError() == "" || r.Clock.Since(told.at) < tellAgain
}

// readToken returns the tunnel's token. Handlers may not read Secrets: the kubelet brings it to the backup's attachment pod.
func (r *Reconciler) readToken(ctx context.Context, b *backupv1.VirtualMachineBackup) ([]byte, error) {
	source, err := r.findTarget(ctx, b)
	if err != nil {
		return nil, err
	}
	return r.Secrets.ReadSecret(source.Pod, layout.TunnelVolume, podspec.TokenKey)
}
