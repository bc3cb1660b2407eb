// Package lab runs virtual machines on a cluster for everyone who wants to see Varve work: the demo, the end-to-end
// tests and the benchmarks. It talks to the cluster as a user would (objects, exec, logs), and to guests through
// their agent, with virsh in the launcher pod.
//
// A Lab owns one namespace. Its methods return errors that name the object. Every wait has a deadline.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1beta1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1beta1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/wait"
)

// Lab is a namespace on a cluster that runs Varve.
type Lab struct {
	client.Client

	Config    *rest.Config
	Clientset kubernetes.Interface
	Namespace string
	// Images maps an image's name (varve, varve-launcher, varve-guest-test, …) to its reference.
	Images map[string]string
	// GuestDir is the directory with the kernels and root disks from `make guest`.
	GuestDir string

	node atomic.Pointer[string] // where the first toolbox was
}

// Scheme returns a scheme with Kubernetes' own kinds and Varve's.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), kubevirtv1.AddToScheme(s), backupv1alpha1.AddToScheme(s), exportv1beta1.AddToScheme(s),
		velerov1.AddToScheme(s), velerov2.AddToScheme(s), harvesterv1beta1.AddToScheme(s), varvev1.AddToScheme(s),
		vmsnapshotv1.AddToScheme(s), snapshotv1.AddToScheme(s), longhornv1.AddToScheme(s))
}

// Open connects to the cluster of kubeconfig, and creates the namespace with these labels if it does not exist. build
// is the repository's build directory.
func Open(ctx context.Context, kubeconfig, build, namespace string, labels map[string]string) (*Lab, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s (is the box up? make box-up): %w", kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	images, err := readImages(filepath.Join(build, "images", "images.json"))
	if err != nil {
		return nil, err
	}
	l := &Lab{Client: c, Config: cfg, Clientset: cs, Namespace: namespace, Images: images, GuestDir: filepath.Join(build, "guest")}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}
	if err := c.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return l, nil
}

// OpenFresh first removes everything that an earlier lab left in the namespace, within the timeout, and then calls Open.
func OpenFresh(ctx context.Context, kubeconfig, build, namespace string, timeout time.Duration) (*Lab, error) {
	old, err := Open(ctx, kubeconfig, build, namespace, nil)
	if err != nil {
		return nil, err
	}
	if err := old.DeleteNamespace(ctx, timeout); err != nil {
		return nil, err
	}
	return Open(ctx, kubeconfig, build, namespace, nil)
}

func readImages(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of images (make images): %w", err)
	}
	var list map[string]struct {
		Ref string `json:"ref"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	images := map[string]string{}
	for name, image := range list {
		images[name] = image.Ref
	}
	return images, nil
}

// Image returns the reference of an image.
func (l *Lab) Image(name string) (string, error) {
	if ref, ok := l.Images[name]; ok {
		return ref, nil
	}
	return "", fmt.Errorf("image %s is not in build/images/images.json (make images)", name)
}

// WaitGone waits until an object no longer exists.
func (l *Lab) WaitGone(ctx context.Context, obj client.Object, timeout time.Duration) error {
	what := fmt.Sprintf("%T %s to be gone", obj, obj.GetName())
	return wait.For(ctx, timeout, what, func(ctx context.Context) (bool, string, error) {
		err := l.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return true, "gone", nil
		}
		return false, fmt.Sprintf("still there, finalizers %v", obj.GetFinalizers()), err
	})
}

// annotationLook is an annotation that DeleteNamespace changes on a namespace that is being deleted.
const annotationLook = "lab.varvebackup.io/look"

// DeleteNamespace deletes the lab's namespace and waits until it is gone. Kubernetes checks a namespace again after
// half of the longest grace period of its pods, which is 46 seconds for a launcher pod, or five seconds after a
// change of the namespace. So it changes the namespace every second.
func (l *Lab) DeleteNamespace(ctx context.Context, timeout time.Duration) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.Namespace}}
	if err := client.IgnoreNotFound(l.Delete(ctx, ns)); err != nil {
		return fmt.Errorf("delete namespace %s: %w", l.Namespace, err)
	}
	var changed time.Time
	return wait.For(ctx, timeout, "namespace "+l.Namespace+" to be gone", func(ctx context.Context) (bool, string, error) {
		err := l.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		if apierrors.IsNotFound(err) {
			return true, "gone", nil
		}
		seen := fmt.Sprintf("still there, conditions %+v", ns.Status.Conditions)
		if err != nil || time.Since(changed) < time.Second {
			return false, seen, err
		}
		changed = time.Now()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotationLook, changed.Format(time.RFC3339Nano))
		return false, seen, client.IgnoreNotFound(l.Patch(ctx, ns, client.RawPatch(types.MergePatchType, []byte(patch))))
	})
}
