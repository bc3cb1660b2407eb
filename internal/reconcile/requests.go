package reconcile

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// InstanceOfBackup maps a VirtualMachineBackup to the instance that it backs up, if it has started on one.
func InstanceOfBackup(_ context.Context, o client.Object) []ctrl.Request {
	backup, ok := o.(*backupv1.VirtualMachineBackup)
	if !ok || backup.Status.SourceName == "" {
		return nil // it never touched an instance
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: backup.Namespace, Name: backup.Status.SourceName}}}
}

// InstancesOfClaim maps a PersistentVolumeClaim to the instances in its namespace for which uses returns true. c reads
// from a cache.
func InstancesOfClaim(c client.Reader, uses func(instance *kubevirtv1.VirtualMachineInstance, claim string) bool) handler.MapFunc {
	return func(ctx context.Context, claim client.Object) []ctrl.Request {
		list := &kubevirtv1.VirtualMachineInstanceList{}
		if err := c.List(ctx, list, client.InNamespace(claim.GetNamespace())); err != nil {
			// The list comes from memory, so this does not happen while the manager runs.
			log.FromContext(ctx).Error(err, "list instances", "claim", client.ObjectKeyFromObject(claim))
			return nil
		}
		var requests []ctrl.Request
		for i := range list.Items {
			if uses(&list.Items[i], claim.GetName()) {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}
