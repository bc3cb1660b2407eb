// Package stored reads back what a repository has of a machine: its definition, and which disks were stored with it. No
// controller opens a repository. A mover pod does, for a DataDownload, and leaves what it reads in a Secret that belongs to
// that DataDownload and goes with it.
package stored

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// operationTimeout bounds each wait of the DataDownload, as for those of disks.
const operationTimeout = 10 * time.Minute

// Reader reads definitions for owners of one kind.
type Reader struct{ child.Maker }

// Request says which definition is read, and for whom.
type Request struct {
	// Owner is the UID of the object that needs the definition.
	Owner types.UID
	// Name is that of the DataDownload, which is in the location's namespace: Varve's.
	Name     string
	Location harvesterv1.LocationReference
	// SnapshotID names any disk of the machine, and Namespace is that of the machine.
	SnapshotID, Namespace string
}

// Answer is what has been read.
type Answer struct {
	// Definition is nil until it is there. Its Secrets are in clear.
	Definition *definition.Definition
	// Disks were stored together with the definition. Those whose restore points are gone or damaged are not among them.
	Disks []datamove.StoredDisk
	// Waiting is what it waits for, and Failed why it will never be there.
	Waiting, Failed string
}

// Ask asks for a definition, unless that was done before. refused says why it cannot be.
func (r Reader) Ask(ctx context.Context, q Request) (refused string, err error) {
	d, err := r.findDownload(ctx, q)
	if err != nil {
		return "", err
	}
	return r.ask(ctx, q, d)
}

// ask makes what is missing of the DataDownload, nil if there is none, and its Secret.
func (r Reader) ask(ctx context.Context, q Request, d *velerov2.DataDownload) (refused string, err error) {
	if d == nil {
		if refused, err := r.Make(ctx, q.Owner, newDownload(q)); refused != "" || err != nil {
			return refused, err
		}
		if d, err = r.findDownload(ctx, q); d == nil || err != nil {
			return "", err
		}
	}
	return r.Make(ctx, q.Owner, secretFor(d))
}

// Read returns what has been read. It asks first.
func (r Reader) Read(ctx context.Context, q Request) (Answer, error) {
	d, err := r.findDownload(ctx, q)
	if err != nil {
		return Answer{}, err
	}
	if d == nil || !d.Status.Phase.Ended() {
		refused, err := r.ask(ctx, q, d)
		waiting := fmt.Sprintf("the definition of the machine, which DataDownload %s reads", q.Name)
		if d != nil && d.Status.Message != "" {
			waiting += ": " + d.Status.Message
		}
		return Answer{Waiting: waiting, Failed: refused}, err
	}
	if d.Status.Phase != velerov2.PhaseCompleted {
		return Answer{Failed: fmt.Sprintf("the definition of the machine cannot be read: DataDownload %s is %s: %s",
			q.Name, d.Status.Phase, d.Status.Message)}, nil
	}
	return r.readSecret(ctx, secretFor(d), q)
}

// readSecret reads the Secret of a DataDownload that is completed.
func (r Reader) readSecret(ctx context.Context, secret *corev1.Secret, q Request) (Answer, error) {
	key := types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name}
	have, err := reconcile.Find(ctx, r.Live, key, &corev1.Secret{})
	switch {
	case err != nil:
		return Answer{}, err
	case have == nil || have.Labels[r.Label] != string(q.Owner):
		return Answer{Failed: fmt.Sprintf("Secret %s with the definition of the machine was deleted by somebody else",
			key)}, nil
	}
	var a Answer
	if a.Definition, err = definition.Decode(have.Data[datamove.DefinitionKey]); err != nil {
		return Answer{Failed: err.Error()}, nil //nolint:nilerr // the answer says it
	}
	if a.Disks, err = datamove.DecodeDisks(have.Data[datamove.DisksKey]); err != nil {
		return Answer{Failed: err.Error()}, nil //nolint:nilerr // the answer says it
	}
	return a, nil
}

// Delete deletes the DataDownload and the Secret, and says whether the DataDownload is still there.
func (r Reader) Delete(ctx context.Context, q Request) (left bool, err error) {
	d, err := r.findDownload(ctx, q)
	if err != nil || d == nil {
		return false, err
	}
	if err := r.Maker.Delete(ctx, q.Owner, secretFor(d)); err != nil {
		return true, err
	}
	return true, r.Remove(ctx, d)
}

// findDownload returns the owner's DataDownload, or nil.
func (r Reader) findDownload(ctx context.Context, q Request) (*velerov2.DataDownload, error) {
	key := types.NamespacedName{Namespace: q.Location.Namespace, Name: q.Name}
	d, err := reconcile.Find(ctx, r.Live, key, &velerov2.DataDownload{})
	if err != nil || d == nil || d.Labels[r.Label] != string(q.Owner) {
		return nil, err
	}
	return d, nil
}

func newDownload(q Request) *velerov2.DataDownload {
	return &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.Location.Namespace, Name: q.Name},
		Spec: velerov2.DataDownloadSpec{
			BackupStorageLocation: q.Location.Name, DataMover: datamove.Mover, SnapshotID: q.SnapshotID,
			SourceNamespace: q.Namespace, OperationTimeout: velerov1.Duration{Duration: operationTimeout},
			DataMoverConfig: map[string]string{datamove.ConfigRead: datamove.ReadDefinition},
			// The data mover is fair between the namespaces of targets. No volume is made.
			TargetVolume: velerov2.TargetVolumeSpec{Namespace: q.Namespace, PVC: "none"},
		},
	}
}

// secretFor returns the Secret that the mover pod of a DataDownload writes into.
func secretFor(d *velerov2.DataDownload) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: datamove.ChildName(datamove.Download, d.UID),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: velerov2.GroupVersion.String(), Kind: string(datamove.Download), Name: d.Name, UID: d.UID,
			}},
		},
		Type: datamove.DefinitionSecretType,
	}
}
