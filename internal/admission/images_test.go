package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// volumeReader lists volumes, or fails.
type volumeReader struct {
	client.Reader
	volumes []longhornv1.Volume
	err     error
}

func (r volumeReader) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if (&client.ListOptions{}).ApplyOptions(opts).Namespace != "varve" {
		return errors.New("it looks into another namespace")
	}
	into.(*longhornv1.VolumeList).Items = r.volumes
	return r.err
}

// clonesOf returns n volumes of an image.
func clonesOf(image string, n int) (all []longhornv1.Volume) {
	for i := range n {
		all = append(all, longhornv1.Volume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pvc-%02d", n-i)}, Spec: longhornv1.VolumeSpec{BackingImage: image},
		})
	}
	return all
}

func TestImageDeletions(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	live := &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "ubuntu-22.04"}}
	deleted := live.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	const refused = "BackingImage ubuntu-22.04 has clones: delete their claims first. The Volumes are: "
	for name, c := range map[string]struct {
		image   *longhornv1.BackingImage
		reader  volumeReader
		code    int32
		message string
	}{
		"no volumes":      {image: live, code: http.StatusOK},
		"others' volumes": {image: live, reader: volumeReader{volumes: clonesOf("debian", 3)}, code: http.StatusOK},
		"clones": {
			live,
			volumeReader{volumes: append(clonesOf("ubuntu-22.04", 2), clonesOf("debian", 3)...)},
			http.StatusConflict,
			refused + "pvc-01, pvc-02",
		},
		"many clones": {
			live, volumeReader{volumes: clonesOf("ubuntu-22.04", 12)}, http.StatusConflict, refused + "pvc-01, pvc-02, " +
				"pvc-03, pvc-04, pvc-05, pvc-06, pvc-07, pvc-08, pvc-09, pvc-10 and 2 more",
		},
		"deleted before": {image: deleted, reader: volumeReader{volumes: clonesOf("ubuntu-22.04", 1)}, code: http.StatusOK},
		"no answer": {
			live,
			volumeReader{err: errors.New("connection refused")},
			http.StatusInternalServerError,
			"list the Volumes of namespace varve: connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := json.Marshal(c.image)
			if err != nil {
				t.Fatal(err)
			}
			h := &imageDeletions{volumes: c.reader, decoder: admission.NewDecoder(scheme)}
			got := h.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Delete, Namespace: "varve", Name: "ubuntu-22.04",
				OldObject: runtime.RawExtension{Raw: raw},
			}})
			if got.Result.Code != c.code || got.Allowed != (c.code == http.StatusOK) ||
				c.message != "" && got.Result.Message != c.message {
				t.Errorf("allowed %t, %+v; want %d %q", got.Allowed, got.Result, c.code, c.message)
			}
		})
	}
}
