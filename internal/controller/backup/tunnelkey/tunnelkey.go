// Package tunnelkey keeps the key of the installation from which the tokens of tunnels are made: one for each backup in pull
// mode (package tunnel).
//
// The key is in a Secret in Varve's namespace while the feature gate IncrementalBackup is on, and is deleted with it. Tokens that were
// made before stay valid for their backups: launcher and reader compare the token, and neither has the key.
package tunnelkey

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/tracking"
)

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,verbs=create
// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,resourceNames=varve-tunnel-key,verbs=get;delete

// Secret is the Secret in Varve's namespace that has the key, and DataKey its key there.
const (
	Secret  = "varve-tunnel-key"
	DataKey = "key"
)

// lookEvery is the pause between two looks at the Secret: nothing tells of its changes.
const lookEvery = time.Minute

// keyBytes is the length of a key: that of HMAC-SHA256's.
const keyBytes = 32

// Options are what Setup needs besides the manager.
type Options struct {
	// Configuration is the KubeVirt object that has the feature gates. The key is in its namespace.
	Configuration types.NamespacedName
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	r := &reconciler{Options: opts, cached: mgr.GetClient(), live: mgr.GetAPIReader()}
	return ctrl.NewControllerManagedBy(mgr).
		Named("tunnelkey" + opts.ControllerSuffix).
		For(&kubevirtv1.KubeVirt{}).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// Read returns the key, or nil if there is none. live must read from the API server: Secrets are not cached.
func Read(ctx context.Context, live client.Reader, namespace string) ([]byte, error) {
	secret, err := find(ctx, live, namespace)
	if err != nil || secret == nil {
		return nil, err
	}
	if key := secret.Data[DataKey]; len(key) >= keyBytes {
		return key, nil
	}
	return nil, nil // it is about to be replaced
}

func find(ctx context.Context, live client.Reader, namespace string) (*corev1.Secret, error) {
	return reconcile.Find(ctx, live, types.NamespacedName{Namespace: namespace, Name: Secret}, &corev1.Secret{})
}

type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
}

// Reconcile makes the key, or deletes it.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.NamespacedName != r.Configuration {
		return ctrl.Result{}, nil
	}
	// Read live: the key of a gate that was just turned on must not be deleted because of an old look at it.
	configuration := &kubevirtv1.KubeVirt{}
	if err := r.live.Get(ctx, r.Configuration, configuration); err != nil {
		// Without the object nobody has turned the gate off.
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	secret, err := find(ctx, r.live, r.Configuration.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	wanted := tracking.GateEnabled(configuration, kubevirtv1.IncrementalBackup)
	switch {
	case secret != nil && (!wanted || len(secret.Data[DataKey]) < keyBytes):
		if err := r.cached.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("delete secret %s/%s: %w", secret.Namespace, secret.Name, err)
		}
		if !wanted {
			return ctrl.Result{}, nil
		}
	case secret != nil:
		return ctrl.Result{RequeueAfter: lookEvery}, nil
	case !wanted:
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: lookEvery}, r.create(ctx)
}

func (r *reconciler) create(ctx context.Context) error {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // it ends the program rather than fail
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Configuration.Namespace, Name: Secret},
		Data:       map[string][]byte{DataKey: key},
	}
	if err := r.cached.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}
