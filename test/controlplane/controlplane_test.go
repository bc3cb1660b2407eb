//go:build controlplane

package controlplane

import (
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

var cluster *Cluster

func TestMain(m *testing.M) { Main(m, &cluster) }

func TestEachUserIsWhoTheyAre(t *testing.T) {
	t.Parallel()
	for _, user := range []User{Admin, Plain, Controller, UnboundHandler} {
		review := selfReview(t, cluster.Client(t, user))
		if review != user.Name {
			t.Errorf("the API server sees %q, want %q", review, user.Name)
		}
	}
}

// A package makes hundreds of clients, and the list of all kinds is the API server's largest answer.
func TestClient_asksForTheKindsOnce(t *testing.T) {
	t.Parallel()
	if cluster.Client(t, Plain).RESTMapper() != cluster.Client(t, Controller).RESTMapper() {
		t.Error("each client asks the API server for all its kinds")
	}
}

func TestPoliciesAreInForceBeforeTheFirstTest(t *testing.T) {
	t.Parallel()
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: "test-sentinel"}}
	if err := cluster.Client(t, Admin).Create(t.Context(), probe); !apierrors.IsInvalid(err) {
		t.Errorf("the sentinel was let through: %v", err)
	}
}

func TestConfigurationHasTheGates(t *testing.T) {
	t.Parallel()
	kv := &kubevirtv1.KubeVirt{}
	key := client.ObjectKey{Namespace: SystemNamespace, Name: "kubevirt"}
	if err := cluster.Client(t, Plain).Get(t.Context(), key, kv); err != nil {
		t.Fatal(err)
	}
	want := []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes, kubevirtv1.VMExport}
	if got := kv.Spec.Configuration.DeveloperConfiguration.FeatureGates; !slices.Equal(got, want) {
		t.Errorf("gates: %v, want %v", got, want)
	}
}

func TestUnknownFieldsAreRefused(t *testing.T) {
	t.Parallel()
	vm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
		"metadata": map[string]any{"namespace": cluster.Namespace(t), "name": "vm"},
		"spec": map[string]any{"surprise": true, "template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}},
		}}},
	}}
	err := cluster.Client(t, Plain).Create(t.Context(), vm)
	if err == nil || !strings.Contains(err.Error(), `unknown field "spec.surprise"`) {
		t.Errorf("got %v, want a refusal that names the field", err)
	}
}

func TestMissingProgramNamesTheTarget(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	if _, err := Start(t.Context()); err == nil || !strings.Contains(err.Error(), "make kube") {
		t.Errorf("got %v, want an error that says `make kube`", err)
	}
}

func selfReview(t *testing.T, c client.Client) string {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username
}
