package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/tracking"
)

// maxVolumes is the most utility volumes that an instance has. The schema says the same, and the API server does not ask
// about more. It limits what a request that somebody forged can make the webhook read.
const maxVolumes = 256

// utilityVolumes refuses utility volumes whose claim cannot be mounted as a directory. It reads claims live, so
// that it sees a claim that was made a moment ago.
type utilityVolumes struct {
	claims  client.Reader
	decoder admission.Decoder
}

// Handle implements admission.Handler.
func (h *utilityVolumes) Handle(ctx context.Context, req admission.Request) admission.Response {
	instance, old := &kubevirtv1.VirtualMachineInstance{}, &kubevirtv1.VirtualMachineInstance{}
	if err := h.decoder.Decode(req, instance); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the instance: %w", err))
	}
	if req.Operation == admissionv1.Update {
		if err := h.decoder.DecodeRaw(req.OldObject, old); err != nil {
			return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the old instance: %w", err))
		}
	}
	if n := max(len(instance.Spec.UtilityVolumes), len(old.Spec.UtilityVolumes)); n > maxVolumes {
		return admission.Denied(fmt.Sprintf("spec.utilityVolumes: an instance has at most %d utility volumes, not %d", maxVolumes, n))
	}
	looked := map[string]bool{}
	for _, u := range addedVolumes(instance.Spec.UtilityVolumes, old.Spec.UtilityVolumes) {
		if looked[u.ClaimName] {
			continue
		}
		looked[u.ClaimName] = true
		claim := &corev1.PersistentVolumeClaim{}
		err := h.claims.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: u.ClaimName}, claim)
		switch {
		case apierrors.IsNotFound(err):
			return admission.Denied(refusalMessage(u, fmt.Sprintf("PersistentVolumeClaim %s does not exist; create it first", u.ClaimName)))
		case err != nil:
			return admission.Errored(http.StatusInternalServerError, fmt.Errorf("read PersistentVolumeClaim %s: %w", u.ClaimName, err))
		case tracking.IsBlock(claim.Spec.VolumeMode):
			return admission.Denied(refusalMessage(u, fmt.Sprintf("PersistentVolumeClaim %s has volumeMode Block; use one with volumeMode Filesystem", u.ClaimName)))
		}
	}
	return admission.Allowed("")
}

func refusalMessage(u kubevirtv1.UtilityVolume, why string) string {
	return fmt.Sprintf("spec.utilityVolumes[%s].claimName: %s", u.Name, why)
}

// addedVolumes returns the volumes that are not in old. It compares names only, because entries are immutable.
func addedVolumes(now, old []kubevirtv1.UtilityVolume) []kubevirtv1.UtilityVolume {
	return slices.DeleteFunc(slices.Clone(now), func(u kubevirtv1.UtilityVolume) bool {
		return slices.ContainsFunc(old, func(o kubevirtv1.UtilityVolume) bool { return o.Name == u.Name })
	})
}
