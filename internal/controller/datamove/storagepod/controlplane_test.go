//go:build controlplane

package storagepod_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod/storagepodtest"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	storage.Register()
	controlplane.Main(m, &cluster)
}

// site is Varve's namespace with a storage.
type site struct {
	*testing.T
	admin   client.Client
	dir     string
	looker  *storagepod.Looker
	kubelet *storagepodtest.Kubelet
	owner   *velerov1.BackupStorageLocation
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, admin: cluster.Client(t, controlplane.Admin), dir: t.TempDir()}
	ns := cluster.Namespace(t)
	controller := cluster.Client(t, controlplane.Controller)
	s.looker = &storagepod.Looker{Namespace: ns, Image: datamove.PodImage{Name: "varve:test"}, Client: controller, Live: controller}
	s.kubelet = storagepodtest.Start(t, s.admin, ns, s.dir)
	s.owner = &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shelf"}}
	s.owner.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "shelf"}
	if err := s.admin.Create(t.Context(), s.owner); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) look(ctx context.Context) repositoryaccess.Seen {
	return s.looker.Look(ctx, &storagepod.Request{
		Owner: s.owner, Kind: metav1.TypeMeta{APIVersion: "velero.io/v1", Kind: "BackupStorageLocation"},
		Storage: datamove.Storage{Volume: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shelf"}}, OneNode: true},
		Look: &repositoryaccess.Look{
			Task: repositoryaccess.TryLocation, Root: datamove.Access{Directory: datamove.StorageDirectory + "/backups"}, Write: true, Words: repositoryaccess.Words{Place: "claim shelf"},
		},
	})
}

// pods waits until so many pods are there, and returns them.
func (s *site) pods(n int) []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	controlplane.Eventually(s.T, func() error {
		if err := s.admin.List(s.Context(), &list, client.InNamespace(s.looker.Namespace)); err != nil {
			return err
		}
		if len(list.Items) != n {
			return fmt.Errorf("%d pods, want %d", len(list.Items), n)
		}
		return nil
	})
	return list.Items
}

func TestLook_leavesNoPod(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for range 2 {
		if seen := s.look(t.Context()); seen.Failure != "" {
			t.Error(seen.Failure)
		}
		s.pods(0)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "backups")); err != nil {
		t.Errorf("nothing was tried: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "backups")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(s.dir, "file"), filepath.Join(s.dir, "backups")); err != nil {
		t.Fatal(err)
	}
	if seen := s.look(t.Context()); !strings.Contains(seen.Failure, "claim shelf: ") || !strings.Contains(seen.Failure, "not a directory") {
		t.Errorf("%+v", seen)
	}
	for _, p := range s.kubelet.Pods() {
		spec, c := p.Spec, p.Spec.Containers[0]
		if *spec.AutomountServiceAccountToken || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation || len(c.SecurityContext.Capabilities.Add) > 0 ||
			spec.HostNetwork || p.OwnerReferences[0].UID != s.owner.UID || p.Labels[datamove.LabelStorage] == "" {
			t.Errorf("%+v", p)
		}
	}
}

// A pod that does not start says why: a claim that is not bound, a mount that fails.
func TestLook_saysWhyItsPodDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kubelet.Freeze(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer := make(chan repositoryaccess.Seen)
	go func() { answer <- s.look(ctx) }()
	pod := s.pods(1)[0]
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e"}, Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "mount.nfs: access denied by server",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, LastTimestamp: metav1.Now(),
	}
	if err := s.admin.Create(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	cancel()
	if seen := <-answer; !strings.Contains(seen.Failure, "claim shelf: the pod that looks there does not start: FailedMount: mount.nfs: access denied by server") {
		t.Errorf("%+v", seen)
	}
	s.pods(0)
}

// A controller that was killed leaves its pod. The next look does not take that one's answer for its own.
func TestLook_replacesAPodOfBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kubelet.Freeze(true)
	ctx, kill := context.WithCancel(t.Context())
	looker := *s.looker
	s.looker.Client = interrupted{s.looker.Client}
	gone := make(chan struct{})
	go func() { defer close(gone); s.look(ctx) }()
	before := s.pods(1)[0]
	kill()
	<-gone
	s.pods(1)
	s.looker = &looker
	s.kubelet.Freeze(false)
	if seen := s.look(t.Context()); seen.Failure != "" {
		t.Error(seen.Failure)
	}
	if ran := s.kubelet.Pods(); len(ran) == 0 || ran[len(ran)-1].UID == before.UID {
		t.Error("the answer is that of the pod of before")
	}
	s.pods(0)
	other := before.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name}
	if err := s.admin.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if seen := s.look(t.Context()); !strings.Contains(seen.Failure, "somebody else's") {
		t.Errorf("%+v", seen)
	}
	if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(other), other); apierrors.IsNotFound(err) || other.DeletionTimestamp != nil {
		t.Error("somebody else's pod is deleted")
	}
}

// interrupted is a controller that is killed before it cleans up.
type interrupted struct{ client.Writer }

func (interrupted) Delete(context.Context, client.Object, ...client.DeleteOption) error { return nil }

// A pod that dies without an answer is no answer.
func TestLook_needsAnAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kubelet.Freeze(true)
	answer := make(chan repositoryaccess.Seen)
	go func() { answer <- s.look(t.Context()) }()
	pod := s.pods(1)[0]
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "look", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}},
	}}
	if err := s.admin.Status().Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	if seen := <-answer; !strings.Contains(seen.Failure, "ended without an answer: OOMKilled") {
		t.Errorf("%+v", seen)
	}
}
