package admission

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// nodeNameKey is where the API server says on which node the pod of a service account's token runs.
const nodeNameKey = "authentication.kubernetes.io/node-name"

// trackerWriters refuses a handler's write to a tracker whose machine does not run on the handler's node. The API
// server calls it only for handlers (the configuration's matchConditions).
type trackerWriters struct {
	// instances reads from the API server, because an instance may have moved a moment ago.
	instances client.Reader
	decoder   admission.Decoder
}

// Handle implements admission.Handler.
func (h *trackerWriters) Handle(ctx context.Context, req admission.Request) admission.Response {
	tracker := &backupv1.VirtualMachineBackupTracker{}
	// Use the old object: the writer must not choose its machine.
	if err := h.decoder.DecodeRaw(req.OldObject, tracker); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the tracker: %w", err))
	}
	nodes := req.UserInfo.Extra[nodeNameKey]
	if len(nodes) != 1 || nodes[0] == "" {
		return admission.Denied("a handler's token must be bound to its pod and node")
	}
	machine := tracker.Spec.Source.Name
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := h.instances.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: machine}, instance)
	switch {
	case apierrors.IsNotFound(err):
		return admission.Denied(fmt.Sprintf("VirtualMachine %s does not run: no handler may write its trackers", machine))
	case err != nil:
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("read VirtualMachineInstance %s: %w", machine, err))
	case instance.Status.NodeName != nodes[0]:
		return admission.Denied(fmt.Sprintf("a handler writes only about its own node: VirtualMachine %s does not run on node %s", machine, nodes[0]))
	}
	return admission.Allowed("")
}
