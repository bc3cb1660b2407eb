package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// countingReader finds every claim and counts how often it is asked.
type countingReader struct {
	client.Reader
	reads int
}

func (c *countingReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	c.reads++
	return nil
}

// Whoever reaches the webhook can send it any request. What it reads for one must not grow with the request.
func TestUtilityVolumes_readsAreBounded(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := kubevirtv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		volumes, claims int
		reads           int
		refusal         string
	}{
		"one":                      {volumes: 1, claims: 1, reads: 1},
		"as many as there can be":  {volumes: maxVolumes, claims: maxVolumes, reads: maxVolumes},
		"all of one claim":         {volumes: maxVolumes, claims: 1, reads: 1},
		"one too many":             {volumes: maxVolumes + 1, claims: 1, refusal: "at most 256 utility volumes, not 257"},
		"a hundred thousand names": {volumes: 100_000, claims: 100_000, refusal: "at most 256 utility volumes, not 100000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := &countingReader{}
			h := &utilityVolumes{claims: reader, decoder: admission.NewDecoder(scheme)}
			response := h.Handle(t.Context(), createRequest(t, c.volumes, c.claims))
			if reader.reads != c.reads || response.Allowed != (c.refusal == "") {
				t.Errorf("%d reads, want %d; allowed: %t", reader.reads, c.reads, response.Allowed)
			}
			if response.Result != nil && !strings.Contains(response.Result.Message, c.refusal) {
				t.Errorf("refused with %q, want %q", response.Result.Message, c.refusal)
			}
		})
	}
}

// createRequest returns a request that creates an instance with utility volumes of different names.
func createRequest(t *testing.T, volumes, claims int) admission.Request {
	t.Helper()
	instance := &kubevirtv1.VirtualMachineInstance{}
	for i := range volumes {
		instance.Spec.UtilityVolumes = append(instance.Spec.UtilityVolumes, kubevirtv1.UtilityVolume{
			Name:                              fmt.Sprintf("u%d", i),
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("c%d", i%claims)},
		})
	}
	raw, err := json.Marshal(instance)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "ns", Object: runtime.RawExtension{Raw: raw},
	}}
}
