// Package watch maps objects that change to the instances that must be reconciled because of it.
package watch

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// BackedUp maps a VirtualMachineBackup to the instance that it backs up, if it has started on one.
func BackedUp(_ context.Context, o client.Object) []reconcile.Request {
	backup, ok := o.(*backupv1.VirtualMachineBackup)
	if !ok || backup.Status.SourceName == "" {
		return nil // it never touched an instance
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: backup.Namespace, Name: backup.Status.SourceName}}}
}

// ClaimUsers maps a PersistentVolumeClaim to the instances in its namespace for which uses returns true. c reads
// from a cache.
func ClaimUsers(c client.Reader, uses func(instance *kubevirtv1.VirtualMachineInstance, claim string) bool) handler.MapFunc {
	return func(ctx context.Context, claim client.Object) []reconcile.Request {
		list := &kubevirtv1.VirtualMachineInstanceList{}
		if err := c.List(ctx, list, client.InNamespace(claim.GetNamespace())); err != nil {
			// The list comes from memory, so this does not happen while the manager runs.
			log.FromContext(ctx).Error(err, "list instances", "claim", client.ObjectKeyFromObject(claim))
			return nil
		}
		var requests []reconcile.Request
		for i := range list.Items {
			if uses(&list.Items[i], claim.GetName()) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}
