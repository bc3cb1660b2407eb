package csi

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// deletions is a disk with one volume. It counts how often that is deleted.
type deletions struct {
	disk.Disk
	handle string
	n      int
}

func (d *deletions) List(context.Context) ([]disk.Object, error) {
	return []disk.Object{{Name: names.Head(d.handle), Kind: disk.KindHead, State: disk.StateWritable}}, nil
}

func (d *deletions) Open(context.Context, disk.Name) (disk.Lease, error) {
	return nil, errclass.Errorf(errclass.Corrupt, "it has no file")
}

func (d *deletions) Delete(context.Context, disk.Name) error {
	d.n++
	return nil
}

// A volume is deleted only if no claim can use its PersistentVolume, as the API server has it: the provisioner's
// library also calls Delete when it does not know whether it made one.
func TestProvisionerDelete_asksForThePersistentVolume(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		live    *corev1.PersistentVolume
		deleted bool
		failure error
		want    error
	}{
		"gone":             {deleted: true},
		"released":         {live: volumeInPhase(corev1.VolumeReleased, false), deleted: true},
		"failed":           {live: volumeInPhase(corev1.VolumeFailed, false), deleted: true},
		"new":              {live: volumeInPhase("", false), want: errclass.Conflict},
		"pending":          {live: volumeInPhase(corev1.VolumePending, false), want: errclass.Conflict},
		"bound":            {live: volumeInPhase(corev1.VolumeBound, false), want: errclass.Conflict},
		"going, and bound": {live: volumeInPhase(corev1.VolumeBound, true), want: errclass.Conflict},
		"going, and free":  {live: volumeInPhase(corev1.VolumeAvailable, true), deleted: true},
		"not known":        {failure: errors.New("connection refused"), want: errclass.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			if err := longhornv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			core := kubernetesfake.NewClientset()
			if x.live != nil {
				core = kubernetesfake.NewClientset(x.live)
			}
			core.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return x.failure != nil, nil, x.failure
			})
			files, disks := &deletions{handle: "pvc-delete-asks-first"}, &diskset.Set{}
			disks.Put(diskset.Disk{Disk: files, Name: "default-disk", UUID: "disk-1"})
			d := New(Options{
				Node: "node1", Namespace: "varve", Disks: disks, Kubernetes: core,
				Client: fake.NewClientBuilder().WithScheme(scheme).Build(),
			})
			err := provisioner{&controllerServer{Driver: d}}.Delete(t.Context(), volumeInPhase("", false))
			if !errors.Is(err, x.want) || (files.n == 1) != x.deleted {
				t.Errorf("%d deletions, %v, want %v", files.n, err, x.want)
			}
		})
	}
}

func volumeInPhase(phase corev1.PersistentVolumePhase, deleting bool) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-delete-asks-first"},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: "pvc-delete-asks-first"},
		}},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
	if deleting {
		pv.DeletionTimestamp, pv.Finalizers = ptr.To(metav1.Now()), []string{"kubernetes.io/pv-protection"}
	}
	return pv
}

// A PersistentVolume that the API server did not confirm is written again, soon, and its volume stays.
func TestRunProvisioner_writesThePersistentVolumeUntilItIsThere(t *testing.T) {
	t.Parallel()
	const node = "node1"
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	core := kubernetesfake.NewClientset(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: names.Driver,
	}, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "unconfirmed", Annotations: map[string]string{
			"volume.kubernetes.io/storage-provisioner": names.Driver, selectedNode: node,
		}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("class")},
	}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	writes := make(chan string, 100)
	core.PrependReactor("create", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		created, ok := a.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolume)
		if ok {
			writes <- created.Name
		}
		return true, nil, errors.New("connection reset by peer")
	})
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: &creations{}, Name: "default-disk", UUID: "disk-1"})
	d := New(Options{
		Node: node, Namespace: "varve", Disks: disks, Kubernetes: core,
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(&longhornv1.Node{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: node},
			Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
				"default-disk": {Path: "/disk", AllowScheduling: true},
			}},
		}).Build(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.runClaims(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	// The library's default is a write every 10 s, and a deletion after five of them.
	deadline, stop := context.WithTimeout(t.Context(), 9*time.Second)
	defer stop()
	for range 2 {
		select {
		case name := <-writes:
			if name != "pvc-unconfirmed" {
				t.Errorf("PersistentVolume %s", name)
			}
		case <-deadline.Done():
			t.Fatal("the PersistentVolume is not written again")
		}
	}
}

// A volume that is restored is made without the image of its class if that is larger, also if an earlier attempt did
// not know its size yet. Others are refused.
func TestProvision_restoresWithoutALargerImage(t *testing.T) {
	t.Parallel()
	const node, larger = "node1", 2 << 30
	restore := map[string]string{
		selectedNode: node, datamove.AnnotationOwner: string(datamove.Download) + "/velero/restore-1",
	}
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		annotations map[string]string
		earlier     bool // the size of the image was not known at first
		imageBytes  int64
		want        error
		image       string // of the volume that is made
	}{
		"restore":                    {annotations: restore, imageBytes: larger},
		"restore that has waited":    {annotations: restore, imageBytes: larger, earlier: true},
		"restore of a smaller image": {annotations: restore, imageBytes: 1 << 20, want: errclass.Transient, image: "debian"},
		"claim of a user":            {annotations: map[string]string{selectedNode: node}, imageBytes: larger, want: errSize},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "varve", Name: "claim", UID: "1", Annotations: x.annotations,
					Labels: map[string]string{datamove.LabelObject: "2"},
				},
				Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				}},
			}
			image := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "debian"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(image).WithObjects(image, &longhornv1.Node{
				ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: node},
				Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
					"default-disk": {Path: "/disk", AllowScheduling: true},
				}},
			}).Build()
			disks := &diskset.Set{}
			disks.Put(diskset.Disk{Disk: &creations{}, Name: "default-disk", UUID: "disk-1"})
			p := provisioner{&controllerServer{Driver: New(Options{
				Node: node, Namespace: "varve", Disks: disks, Client: c, Kubernetes: kubernetesfake.NewClientset(claim),
			})}}
			options := controller.ProvisionOptions{PVName: "pvc-1", PVC: claim, StorageClass: &storagev1.StorageClass{
				Parameters: map[string]string{parameterImage: "debian"},
			}}
			if x.earlier {
				if _, _, err := p.Provision(t.Context(), options); !errors.Is(err, errclass.Transient) {
					t.Fatalf("before the image is there: %v", err)
				}
			}
			image.Status.Size = x.imageBytes
			if err := c.Status().Update(t.Context(), image); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Provision(t.Context(), options); !errors.Is(err, x.want) {
				t.Fatalf("%v, want %v", err, x.want)
			}
			var replica longhornv1.Replica
			err := c.Get(t.Context(), client.ObjectKey{Namespace: "varve", Name: "pvc-1"}, &replica)
			if apierrors.IsNotFound(err) && errors.Is(x.want, errSize) {
				return
			}
			if err != nil || replica.Spec.BackingImage != x.image {
				t.Errorf("the replica is one of image %q, want %q: %v", replica.Spec.BackingImage, x.image, err)
			}
		})
	}
}

// No volume has its image copied to a disk that the image excludes, unless a user has listed the disk.
func TestCreateVolume_keepsToTheImagesTags(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		disks map[string]*longhornv1.BackingImageDiskFileSpec
		want  error
	}{
		"excluded": {want: errclass.Exhausted},
		"listed":   {disks: map[string]*longhornv1.BackingImageDiskFileSpec{"disk-1": {}}, want: errclass.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := tagged([]string{"ssd"}, nil)
			image.Namespace, image.Spec.DiskFileSpecMap = "varve", x.disks
			disks := &diskset.Set{}
			disks.Put(diskset.Disk{Disk: &creations{}, Name: "default-disk", UUID: "disk-1"})
			d := New(Options{
				Node: "node1", Namespace: "varve", Disks: disks,
				Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(image, &longhornv1.Node{
					ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "node1"},
					Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
						"default-disk": {Path: "/disk", AllowScheduling: true},
					}},
				}).Build(),
			})
			if _, err := d.createVolume(t.Context(), volume{handle: "pvc-1", bytes: 1 << 30, image: "debian"}); !errors.Is(err,
				x.want) {
				t.Errorf("%v, want %v", err, x.want)
			}
		})
	}
}

// creations is a disk with much space, on which every volume can be made.
type creations struct{ disk.Disk }

func (creations) List(context.Context) ([]disk.Object, error) { return nil, nil }

func (creations) Usage(context.Context) (disk.Usage, error) {
	return disk.Usage{Capacity: 1 << 40, Available: 1 << 40}, nil
}

func (creations) Create(context.Context, disk.Name, disk.Source) error { return nil }
