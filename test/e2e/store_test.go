//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// storeClass is the class of volumes that the store makes, and of their snapshots.
const storeClass = "varve-store"

// TestStore_snapshotsAreBackedUpByWhatChanged has a volume of the store that is in use: two snapshots of it are stored,
// the first one by what it has and the second one by what changed, a claim is made of a third one, the volume grows,
// and what was stored comes back.
func TestStore_snapshotsAreBackedUpByWhatChanged(t *testing.T) {
	s := newScene(t, "store")
	ctx := t.Context()
	s.announceStore()
	s.setMover("storageClasses: {" + storeClass + ": {keepSnapshot: true}}")
	location, err := s.BucketLocation(ctx, "e2e-store", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		s.must(s.DeleteUploads(ctx, 3*time.Minute))
		s.waitKept(ctx, 0)
		s.must(location.Remove(ctx))
	})
	s.must(s.DeleteUploads(ctx, 3*time.Minute)) // which an earlier run may have left
	s.must(s.ClassClaim(ctx, "disk", storeClass, 256*mib))
	box, err := s.Toolbox(ctx, "writer", "disk")
	s.must(err)
	sum := func(script string) string {
		t.Helper()
		out, err := box.Run(ctx, script+` && sha256sum /dev/disk`)
		s.must(err)
		return strings.Fields(out)[0]
	}
	first := sum(`dd if=/dev/urandom of=/dev/disk bs=1M count=64 seek=8 conv=fsync status=none`)
	s.snapshot("one", "disk")
	whole := s.storeSnapshot(location, "one", "disk")
	s.checkRead(whole, 64*mib)
	second := sum(`dd if=/dev/urandom of=/dev/disk bs=64k count=16 seek=2000 conv=fsync status=none`)
	s.snapshot("two", "disk")
	changed := s.storeSnapshot(location, "two", "disk")
	s.checkRead(changed, mib)
	s.waitKept(ctx, 1) // that of the second upload, for the next one

	s.snapshot("three", "disk") // the others are the data mover's now, as Velero's are
	// The volume grows while a pod has it, and keeps what it has.
	s.growClaim("disk", 320*mib)
	out, err := box.Run(ctx, `for i in $(seq 60); do [ "$(blockdev --getsize64 /dev/disk)" = 335544320 ] && break; sleep 1; done;
		blockdev --getsize64 /dev/disk; head -c 268435456 /dev/disk | sha256sum`)
	s.must(err)
	if got := strings.Fields(out); got[0] != "335544320" || got[1] != second {
		verdict.Errorf(t, "after its growth the volume has %s, and not %s", out, second)
	}
	s.must(box.Close(ctx))

	s.must(s.SnapshotClaim(ctx, "of-three", "three", storeClass, 320*mib))
	program, mode := varveProgram(), corev1.PersistentVolumeBlock
	s.must(s.Download(ctx, program, cluster.kubeconfig, changed, "back", mode))
	s.must(s.Download(ctx, program, cluster.kubeconfig, whole, "back-one", mode))
	for claim, want := range map[string]string{"of-three": second, "back": second, "back-one": first} {
		reader, err := s.ReadOnlyToolbox(ctx, "reader-"+claim, claim)
		s.must(err)
		out, err := reader.Run(ctx, "head -c 268435456 /dev/"+claim+" | sha256sum")
		s.must(err)
		s.must(reader.Close(ctx))
		if got := strings.Fields(out)[0]; got != want {
			verdict.Errorf(t, "claim %s has %s, not %s", claim, got, want)
		}
	}
}

// announceStore installs the kind SnapshotMetadataService, and waits until Varve, which has run without it, announces
// the stores' service.
func (s *scene) announceStore() {
	s.t.Helper()
	ctx := s.t.Context()
	directory, err := controlplane.SnapshotMetadataCRDs(ctx)
	s.must(err)
	_, err = envtest.InstallCRDs(s.Config, envtest.CRDInstallOptions{
		Paths: []string{directory}, ErrorIfPathMissing: true,
	})
	s.must(err)
	what := "the stores' service to be announced"
	s.must(wait.For(ctx, 3*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		_, err := csichanges.FindService(ctx, s, names.Driver)
		if errors.Is(err, errclass.NotFound) {
			return false, err.Error(), nil
		}
		return err == nil, "", err
	}))
}

// checkRead checks that an upload has read so many bytes, those that samples take, and no others.
func (s *scene) checkRead(u *velerov2.DataUpload, bytes int64) {
	s.t.Helper()
	report, err := datamove.DecodeReport(u.Annotations[datamove.AnnotationReport])
	s.must(err)
	s.t.Logf("upload %s: %d KiB of %d MiB read, %d KiB new; full: %s %s", u.Name, report.ReadBytes>>10,
		report.TotalBytes/mib, report.IncrementalBytes>>10, report.FullReason, report.FullDetail)
	samples := 4 * mib
	if report.FullReason != "" || max(report.ReadBytes, report.IncrementalBytes) > bytes+samples {
		s.t.Errorf("upload %s was stored with %+v", u.Name, report)
	}
}

// waitKept waits until so many snapshots of the scene's claims are kept for later uploads.
func (s *scene) waitKept(ctx context.Context, want int) {
	s.t.Helper()
	what := fmt.Sprintf("%d snapshots to be kept", want)
	s.must(wait.For(ctx, 3*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		var list snapshotv1.VolumeSnapshotList
		err := s.List(ctx, &list, client.InNamespace(layout.Namespace), client.HasLabels{datamove.LabelKeptSnapshot})
		var kept []string
		for _, snapshot := range list.Items {
			k, err := datamove.DecodeKeptSnapshot(snapshot.Annotations[datamove.AnnotationKeptSnapshot])
			if err != nil {
				return false, "", fmt.Errorf("snapshot %s: %w", snapshot.Name, err)
			}
			if k.Claim.Namespace == s.Namespace {
				kept = append(kept, snapshot.Name)
			}
		}
		return len(kept) == want, strings.Join(kept, ", "), err
	}))
}

// snapshot makes a snapshot of a claim of the store, and waits until it is ready.
func (s *scene) snapshot(name, claim string) {
	s.t.Helper()
	s.must(s.Snapshot(s.t.Context(), name, claim, storeClass, 2*time.Minute))
}

// storeSnapshot stores a snapshot of a claim.
func (s *scene) storeSnapshot(at *lab.Location, name, claim string) *velerov2.DataUpload {
	s.t.Helper()
	ctx := s.t.Context()
	u, err := s.UploadSnapshot(ctx, s.Namespace+"-"+name, name, claim, storeClass, at, 2*time.Minute)
	s.must(err)
	s.must(s.WaitUpload(ctx, u, 5*time.Minute))
	return u
}

// growClaim asks for more bytes of a claim, and waits until it has them.
func (s *scene) growClaim(claim string, bytes int64) {
	s.t.Helper()
	ctx, pvc := s.t.Context(), &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: s.Namespace, Name: claim}
	s.must(s.Get(ctx, key, pvc))
	before := pvc.DeepCopy()
	pvc.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(bytes, resource.BinarySI)
	s.must(s.Patch(ctx, pvc, client.MergeFrom(before)))
	s.must(wait.For(ctx, 3*time.Minute, "claim "+claim+" to grow", func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, key, pvc)
		return pvc.Status.Capacity.Storage().Value() >= bytes, fmt.Sprintf("%+v", pvc.Status), err
	}))
}
