package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/wait"
)

// ServeFiles serves the files of a directory over HTTP where the pods of the box in boxDir reach them, until stop is
// called. It returns the address of the directory.
func ServeFiles(ctx context.Context, boxDir, dir string) (address string, stop func(), err error) {
	return ServeHTTP(ctx, boxDir, http.FileServer(http.Dir(dir)))
}

// ServeHTTP is ServeFiles with a handler of the caller's.
func ServeHTTP(ctx context.Context, boxDir string, handler http.Handler) (address string, stop func(), err error) {
	store, _, err := s3.OnBox(boxDir)
	if err != nil {
		return "", nil, err
	}
	host, _, err := net.SplitHostPort(store.Address)
	if err != nil {
		return "", nil, fmt.Errorf("find the address of the box: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", nil, fmt.Errorf("serve HTTP for the box: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // it ends with Close
	}()
	return "http://" + listener.Addr().String(), func() {
		_ = server.Close() // nothing is written
		<-ended
	}, nil
}

// DownloadImage makes an image from an address, with a copy on so many disks, and waits until they are ready.
func (l *Lab) DownloadImage(ctx context.Context, name, address string, copies int, timeout time.Duration) (*longhornv1.BackingImage, error) {
	from := parameters{longhornv1.ParameterURL: longhornv1.ParameterValue(address)}
	return l.makeImage(ctx, name, longhornv1.SourceDownload, from, "", copies, timeout)
}

// UploadImage makes an image of a file, with one copy, with the command that users have. Another image of the same name
// must not be there.
func (l *Lab) UploadImage(
	ctx context.Context, program, kubeconfig, name, file string, timeout time.Duration,
) (*longhornv1.BackingImage, error) {
	if err := moveImage(ctx, program, kubeconfig, "upload", name, file, timeout); err != nil {
		return nil, err
	}
	image := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	return image, l.WaitImage(ctx, image, 1, timeout)
}

// SaveImage downloads an image to a file, which must not be there, with the command that users have.
func (l *Lab) SaveImage(
	ctx context.Context, program, kubeconfig, name, file string, timeout time.Duration,
) error {
	return moveImage(ctx, program, kubeconfig, "download", name, file, timeout)
}

// moveImage runs the command that uploads or downloads an image.
func moveImage(
	ctx context.Context, program, kubeconfig, direction, name, file string, timeout time.Duration,
) error {
	out, err := exec.CommandContext(ctx, filepath.Clean(program), "image", direction, name, file,
		"--kubeconfig", kubeconfig, "--timeout", timeout.String(), "--progress", "plain").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s image %s: %w: %s", direction, name, err, out)
	}
	return nil
}

// CloneImage makes an image of another one, with one copy.
func (l *Lab) CloneImage(ctx context.Context, name, image string, timeout time.Duration) (*longhornv1.BackingImage, error) {
	from := parameters{longhornv1.ParameterBackingImage: longhornv1.ParameterValue(image)}
	return l.makeImage(ctx, name, longhornv1.SourceClone, from, "", 1, timeout)
}

// ExportVolume makes an image of a volume that nothing uses, with one copy. It must have the checksum.
func (l *Lab) ExportVolume(ctx context.Context, name, volume, checksum string, timeout time.Duration) (*longhornv1.BackingImage, error) {
	from := parameters{longhornv1.ParameterVolumeName: longhornv1.ParameterValue(volume)}
	return l.makeImage(ctx, name, longhornv1.SourceExport, from, checksum, 1, timeout)
}

// RestoreImage makes an image of a disk that a location of Varve's namespace has, with one copy. It must have the
// checksum.
func (l *Lab) RestoreImage(
	ctx context.Context, name, location, snapshotID, checksum string, timeout time.Duration,
) (*longhornv1.BackingImage, error) {
	from := parameters{
		longhornv1.ParameterLocation:   longhornv1.ParameterValue(location),
		longhornv1.ParameterSnapshotID: longhornv1.ParameterValue(snapshotID),
	}
	return l.makeImage(ctx, name, longhornv1.SourceRestore, from, checksum, 1, timeout)
}

// BackUpImage stores an image in a location of Varve's namespace, and waits until it is stored.
func (l *Lab) BackUpImage(
	ctx context.Context, name, image, location string, timeout time.Duration,
) (*longhornv1.BackupBackingImage, error) {
	b := &longhornv1.BackupBackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name},
		Spec:       longhornv1.BackupBackingImageSpec{BackingImage: image, BackupTargetName: location},
	}
	if err := l.Create(ctx, b); err != nil {
		return nil, fmt.Errorf("create image backup %s: %w", name, err)
	}
	return b, wait.For(ctx, timeout, "the backup of image "+image, func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return false, "", err
		}
		if b.Status.State == longhornv1.BackupError {
			return false, "", fmt.Errorf("image backup %s: %s", name, b.Status.Error)
		}
		return b.Status.State == longhornv1.BackupCompleted, fmt.Sprintf("%+v", b.Status), nil
	})
}

// parameters are those of an image's source.
type parameters map[string]longhornv1.ParameterValue

func (l *Lab) makeImage(
	ctx context.Context, name string, source longhornv1.SourceType, from parameters, checksum string, copies int,
	timeout time.Duration,
) (*longhornv1.BackingImage, error) {
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name},
		Spec: longhornv1.BackingImageSpec{
			DataEngine: longhornv1.DataEngineV2, SourceType: source, MinNumberOfCopies: copies, Checksum: checksum,
			SourceParameters: from,
		},
	}
	if err := l.Create(ctx, image); err != nil {
		return nil, fmt.Errorf("create image %s: %w", name, err)
	}
	return image, l.WaitImage(ctx, image, copies, timeout)
}

// WaitImage waits until an image has so many copies that are ready.
func (l *Lab) WaitImage(ctx context.Context, image *longhornv1.BackingImage, copies int, timeout time.Duration) error {
	return wait.For(ctx, timeout, fmt.Sprintf("%d copies of image %s", copies, image.Name),
		func(ctx context.Context) (bool, string, error) {
			if err := l.Get(ctx, client.ObjectKeyFromObject(image), image); err != nil {
				return false, "", err
			}
			seen := fmt.Sprintf("first copy %s, %d ready", image.Status.V2FirstCopyStatus, image.Status.ReadyCopies)
			for uuid, c := range image.Status.DiskFileStatusMap {
				seen += fmt.Sprintf("; disk %s: %+v", uuid, *c)
			}
			if c := meta.FindStatusCondition(image.Status.Conditions, longhornv1.ConditionReady); c != nil {
				seen += fmt.Sprintf("; %s %s: %s", c.Status, c.Reason, c.Message)
			}
			return int(image.Status.ReadyCopies) >= copies, seen, nil
		})
}

// DeleteImage deletes an image, and waits until no copy is left.
func (l *Lab) DeleteImage(ctx context.Context, name string, timeout time.Duration) error {
	image := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	if err := client.IgnoreNotFound(l.Delete(ctx, image)); err != nil {
		return fmt.Errorf("delete image %s: %w", name, err)
	}
	return l.WaitGone(ctx, image, timeout)
}

// ImageClass makes a StorageClass whose volumes are clones of an image. It has the image's name.
func (l *Lab) ImageClass(ctx context.Context, image string) error {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: image}, Provisioner: names.Driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		Parameters:        map[string]string{"dataEngine": "v2", "numberOfReplicas": "1", "backingImage": image},
	}
	if err := l.Create(ctx, class); err != nil {
		return fmt.Errorf("create storage class %s: %w", image, err)
	}
	return nil
}

// DeleteImageClass deletes what ImageClass made.
func (l *Lab) DeleteImageClass(ctx context.Context, image string) error {
	return client.IgnoreNotFound(l.Delete(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: image}}))
}

// MeasureBinding waits until a claim that waits for its first consumer is bound, and returns how long that took from the
// moment at which the scheduler chose its node.
func (l *Lab) MeasureBinding(ctx context.Context, name string, timeout time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	watcher, err := l.Clientset.CoreV1().PersistentVolumeClaims(l.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + name,
	})
	if err != nil {
		return 0, fmt.Errorf("watch claim %s: %w", name, err)
	}
	defer watcher.Stop()
	var chosen time.Time
	for event := range watcher.ResultChan() {
		claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		if chosen.IsZero() && claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
			chosen = time.Now()
		}
		if claim.Status.Phase == corev1.ClaimBound {
			return time.Since(chosen), nil
		}
	}
	return 0, errors.Join(fmt.Errorf("claim %s was not bound", name), ctx.Err())
}
