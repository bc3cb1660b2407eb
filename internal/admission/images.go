package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// volumePage is how many volumes are read at a time.
	volumePage = 500
	// clonesNamed is how many volumes a refusal names.
	clonesNamed = 10
)

// imageDeletions refuses to delete images that volumes are clones of. It reads the volumes live, so that it sees one
// that was made a moment ago. One that is made in the same moment may be missed: then the image stays until that volume
// is deleted, because its controller looks again.
type imageDeletions struct {
	volumes client.Reader
	decoder admission.Decoder
}

// Handle implements admission.Handler.
func (h *imageDeletions) Handle(ctx context.Context, req admission.Request) admission.Response {
	image := &longhornv1.BackingImage{}
	if err := h.decoder.DecodeRaw(req.OldObject, image); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decode the image: %w", err))
	}
	if image.DeletionTimestamp != nil {
		return admission.Allowed("") // it is being deleted already
	}
	clones, err := h.listClones(ctx, req.Namespace, req.Name)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if len(clones) == 0 {
		return admission.Allowed("")
	}
	response := admission.Denied("")
	response.Result = &metav1.Status{
		Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: reconcile.CutText(refuseDeletion(req.Name, clones), refusalBytes),
	}
	return response
}

func refuseDeletion(image string, clones []string) string {
	slices.Sort(clones)
	more := ""
	if n := len(clones); n > clonesNamed {
		clones, more = clones[:clonesNamed], fmt.Sprintf(" and %d more", n-clonesNamed)
	}
	return fmt.Sprintf("BackingImage %s has clones: delete their claims first. The Volumes are: %s%s", image,
		strings.Join(clones, ", "), more)
}

// listClones returns the names of the volumes that are clones of an image.
func (h *imageDeletions) listClones(ctx context.Context, namespace, image string) (clones []string, err error) {
	newList := func() *longhornv1.VolumeList { return &longhornv1.VolumeList{} }
	err = reconcile.ListPages(ctx, h.volumes, volumePage, newList, func(page *longhornv1.VolumeList) error {
		for i := range page.Items {
			if v := &page.Items[i]; v.Spec.BackingImage == image {
				clones = append(clones, v.Name)
			}
		}
		return nil
	}, client.InNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("list the Volumes of namespace %s: %w", namespace, err)
	}
	return clones, nil
}
