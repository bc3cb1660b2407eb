package definition_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/errclass"
)

// web is a machine with fields of upstream's that Varve's own kinds do not have.
const web = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: web
  namespace: app
  labels: {tier: front}
  annotations: {note: keep, varvebackup.io/remembered: x, kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  running: true
  instancetype: {name: large}
  template:
    metadata: {labels: {app: web}}
    spec:
      hostname: www
      accessCredentials:
      - sshPublicKey: {source: {secret: {secretName: keys}}}
      domain:
        devices:
          interfaces:
          - {name: default, masquerade: {}}
          - {name: other, bridge: {}, macAddress: "02:00:00:00:00:02"}
      volumes:
      - {name: root, persistentVolumeClaim: {claimName: web-root}}
      - {name: init, cloudInitNoCloud: {secretRef: {name: user}, networkDataSecretRef: {name: net}}}
      - {name: settings, configMap: {name: settings}}
      - {name: kernel, containerDisk: {image: k, imagePullSecret: pull}}
`

func machine(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	vm := definition.NewMachine()
	if err := yaml.Unmarshal([]byte(web), &vm.Object); err != nil {
		t.Fatal(err)
	}
	return vm
}

func source(t *testing.T) *harvesterv1.VirtualMachineSourceSpec {
	t.Helper()
	s, err := definition.Source(machine(t), map[string]string{"default": "02:00:00:00:00:01"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSource_keepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := source(t)
	if s.ObjectMeta.Annotations["note"] != "keep" || len(s.ObjectMeta.Annotations) != 2 ||
		s.ObjectMeta.Labels["tier"] != "front" {
		t.Errorf("metadata %+v", s.ObjectMeta)
	}
	secrets, configMaps, err := definition.References(s.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"keys", "net", "pull", "user"}, secrets); diff != "" {
		t.Errorf("Secrets: %s", diff)
	}
	if diff := cmp.Diff([]string{"settings"}, configMaps); diff != "" {
		t.Errorf("ConfigMaps: %s", diff)
	}
}

func TestRestored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keep bool
		want []any
	}{
		"with its addresses": {true, []any{"02:00:00:00:00:01", "02:00:00:00:00:02"}},
		"with new ones":      {false, []any{nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm, strategy, err := definition.Restored(source(t), definition.Target{
				Namespace: "other", Name: "again", Claims: map[string]string{"root": "new-root"},
				KeepAddresses: c.keep, Annotations: map[string]string{"made-by": "test"},
			})
			if err != nil {
				t.Fatal(err)
			}
			want := machine(t)
			want.SetName("again")
			want.SetNamespace("other")
			want.SetAnnotations(map[string]string{"note": "keep", "made-by": "test"})
			spec := want.Object["spec"].(map[string]any)
			delete(spec, "running")
			spec["runStrategy"] = "Halted"
			template := spec["template"].(map[string]any)["spec"].(map[string]any)
			template["volumes"].([]any)[0].(map[string]any)["persistentVolumeClaim"] = map[string]any{"claimName": "new-root"}
			for i, address := range c.want {
				fields := template["domain"].(map[string]any)["devices"].(map[string]any)["interfaces"].([]any)[i].(map[string]any)
				delete(fields, "macAddress")
				if address != nil {
					fields["macAddress"] = address
				}
			}
			if diff := cmp.Diff(want.Object, vm.Object); diff != "" || strategy != "Always" {
				t.Errorf("strategy %s: %s", strategy, diff)
			}
		})
	}
}

func TestRestored_refusesAVolumeThatTheMachineDoesNotHave(t *testing.T) {
	t.Parallel()
	_, _, err := definition.Restored(source(t), definition.Target{Claims: map[string]string{"root": "a", "data": "b"}})
	if err == nil || !strings.Contains(err.Error(), "no volume data") {
		t.Errorf("%v", err)
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	d := &definition.Definition{Machine: *source(t), Secrets: []definition.Secret{{
		Name: "keys",
		Data: map[string][]byte{"k": []byte("v")},
	}}}
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := definition.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	d.Version = definition.Version
	if diff := cmp.Diff(d, again); diff != "" {
		t.Error(diff)
	}
	d.Secrets[0].Data["k"] = make([]byte, definition.MaxBytes)
	if _, err := d.Encode(); !errors.Is(err, errclass.Invalid) {
		t.Errorf("too large: %v", err)
	}
	if _, err := definition.Decode([]byte(`{"version":2}`)); !errors.Is(err, errclass.Invalid) {
		t.Errorf("another version: %v", err)
	}
	if _, err := definition.Decode([]byte(`{`)); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("no JSON: %v", err)
	}
	_, _, err = definition.References(runtime.RawExtension{Raw: []byte("x")})
	if err == nil {
		t.Error("references of no JSON")
	}
}
