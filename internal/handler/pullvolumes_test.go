//go:build controlplane || root

package handler_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// pulledByDataUploads has a backup be read by mover pods.
func pulledByDataUploads(b *backupv1.VirtualMachineBackup) {
	b.Spec.PulledBy, b.Spec.TokenSecretRef = backupv1.PulledByDataUploads, nil
}

// offerVolumes plays the controller, which says where the launcher connects to with single volumes. The backup has the volumes root
// and data, and no others.
func (w *world) offerVolumes(b *backupv1.VirtualMachineBackup, addresses map[string]string) {
	w.t.Helper()
	controlplane.Update(w.t, w.client, b, true, func(b *backupv1.VirtualMachineBackup) {
		if len(b.Status.IncludedVolumes) == 1 {
			b.Status.IncludedVolumes = append(b.Status.IncludedVolumes, backupv1.IncludedVolume{Name: "data", Type: backupv1.Full})
		}
		b.Status.PullTunnels, b.Status.PullTunnelSecret = nil, "tunnel"
		for _, volume := range slices.Sorted(maps.Keys(addresses)) {
			b.Status.PullTunnels = append(b.Status.PullTunnels, backupv1.VolumeTunnel{
				Volume: volume, PullTunnel: backupv1.PullTunnel{Address: addresses[volume], ServerName: "mover", Authorities: "PEM"},
			})
		}
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Test"})
	})
}

// untilOffered waits until the launcher offers each volume at its address, and nothing else.
func (w *world) untilOffered(addresses map[string]string) {
	w.t.Helper()
	w.until(func() (err error) {
		w.launcher.view(func() {
			got := map[string]string{}
			for volume, r := range w.launcher.offered {
				got[volume] = r.GetAddress()
				if r.GetServerName() != "mover" || string(r.GetAuthorities()) != "PEM" || string(r.GetToken()) != "token of b1" {
					w.t.Errorf("volume %s: %v", volume, r)
				}
			}
			diff := cmp.Diff(addresses, got)
			err = want(diff == "", "%s", diff)
		})
		return err
	})
}

func TestPullVolumes_eachIsOfferedToItsFarEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving(pulledByDataUploads)
	// The launcher is told of no volume that is not the backup's.
	w.offerVolumes(b, map[string]string{"root": "10.0.0.1:9090", "data": "10.0.0.2:9090", "other": "10.0.0.3:9090"})
	w.untilOffered(map[string]string{"root": "10.0.0.1:9090", "data": "10.0.0.2:9090"})

	// One has another mover; the other is not told again.
	calls := w.launcher.count("ConnectBackup")
	w.offerVolumes(b, map[string]string{"root": "10.0.0.1:9090", "data": "10.0.0.4:9090"})
	w.untilOffered(map[string]string{"root": "10.0.0.1:9090", "data": "10.0.0.4:9090"})
	if got := w.launcher.count("ConnectBackup"); got != calls+1 {
		t.Errorf("%d calls for one change", got-calls)
	}

	// The launcher refuses one; the other is told all the same, and the one once the launcher takes it.
	w.launcher.set(func(*pb.State) {
		w.launcher.refuseConnect = map[string]error{"data": status.Error(codes.Unavailable, "not now")}
	})
	w.offerVolumes(b, map[string]string{"root": "10.0.0.5:9090", "data": "10.0.0.6:9090"})
	w.untilOffered(map[string]string{"root": "10.0.0.5:9090", "data": "10.0.0.4:9090"})
	w.launcher.set(func(*pb.State) { w.launcher.refuseConnect = nil })
	w.untilOffered(map[string]string{"root": "10.0.0.5:9090", "data": "10.0.0.6:9090"})

	// A far end that is gone is not offered any more, also if it goes while no handler is there.
	w.offerVolumes(b, map[string]string{"data": "10.0.0.6:9090"})
	w.untilOffered(map[string]string{"data": "10.0.0.6:9090"})
	w.stop()
	w.offerVolumes(b, nil)
	w.run()
	w.untilOffered(map[string]string{})
}

func TestPullVolumes_onlyStoredOnesEndWell(t *testing.T) {
	t.Parallel()
	for phase, stored := range map[backupv1.BackupPhase]bool{"Copied": true, "CopyFailed": false} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			b := w.serving(pulledByDataUploads)
			w.offerVolumes(b, map[string]string{"root": "10.0.0.1:9090"})
			w.untilOffered(map[string]string{"root": "10.0.0.1:9090"})
			if stored {
				controlplane.Update(t, w.client, b, false, func(b *backupv1.VirtualMachineBackup) {
					metav1.SetMetaDataAnnotation(&b.ObjectMeta, layout.AnnotationStored, "true")
				})
			}
			w.delete(b)
			w.untilPhase(b, phase)
			if finished, aborted := w.launcher.count("FinishBackup") > 0, w.launcher.count("AbortBackup") > 0; finished != stored || aborted == stored {
				t.Errorf("finished %v, aborted %v; %s: %s", finished, aborted, b.Status.Reason, b.Status.Message)
			}
		})
	}
}

// The launcher says DONE for a deleted backup whose restore points nobody has published.
func TestPullVolumes_doneWithoutRestorePointsIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	b := w.serving(pulledByDataUploads)
	w.offerVolumes(b, map[string]string{"root": "10.0.0.1:9090"})
	w.untilOffered(map[string]string{"root": "10.0.0.1:9090"})
	w.stop()
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_DONE })
	w.delete(b)
	w.run()
	w.untilPhase(b, "CopyFailed")
}

func TestPullVolumes_launcherThatOffersAllIsNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.launcher.set(func(s *pb.State) { s.OffersSingleVolumes = false })
	b := w.pullBackup(w.tracker("tr", "root"), "token of b1", pulledByDataUploads)
	w.untilPhase(b, "CopyFailed")
	if w.launcher.count("BeginBackup") != 0 || !strings.Contains(b.Status.Message, "restart the machine") {
		t.Errorf("begun %d times; %s", w.launcher.count("BeginBackup"), b.Status.Message)
	}
}
