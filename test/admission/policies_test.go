//go:build controlplane

package admission

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// otherAccount is a service account in Varve's namespace that no component of Varve has.
var otherAccount = controlplane.ServiceAccount(controlplane.SystemNamespace, "default")

const notYours = "only Varve's controllers attach and detach utilityVolumes"

func TestUtilityVolumes_areChangedByVarveOnly(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for _, user := range []controlplane.User{
		controlplane.Plain, controlplane.Admin, controlplane.ServiceAccount(ns, "varve-controller"), otherAccount, controlplane.HandlerOn("node-1"),
	} {
		c := cluster.Client(t, user)
		vmi := newInstance(ns)
		vmi.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
		refused(t, c.Create(t.Context(), vmi), notYours)
	}
	user, varve := cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.Controller)
	vmi := newInstance(ns)
	admitted(t, user.Create(t.Context(), vmi))
	vmi.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
	refused(t, user.Update(t.Context(), vmi.DeepCopy()), notYours)
	admitted(t, varve.Update(t.Context(), vmi))

	// Existing utility volumes do not keep others from the writes that they may make.
	vmi.Labels = map[string]string{"mine": "yes"}
	admitted(t, user.Update(t.Context(), vmi))
	vmi.Spec.UtilityVolumes = nil
	refused(t, user.Update(t.Context(), vmi.DeepCopy()), notYours)
	admitted(t, varve.Update(t.Context(), vmi))
}

func TestInstanceSpec_isImmutable(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user, varve := cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.Controller)
	vmi := newInstance(ns)
	admitted(t, user.Create(t.Context(), vmi))
	edits := map[string]func(*kubevirtv1.VirtualMachineInstanceSpec){
		"domain":                        func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.CPU = &kubevirtv1.CPU{Cores: 2} },
		"nodeSelector":                  func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.NodeSelector = map[string]string{"a": "b"} },
		"terminationGracePeriodSeconds": func(s *kubevirtv1.VirtualMachineInstanceSpec) { *s.TerminationGracePeriodSeconds = 1 },
		"networks": func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Networks, s.Domain.Devices.Interfaces = nil, nil
		},
		"volumes": func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Volumes[0].PersistentVolumeClaim = claimSource("other")
		},
	}
	for name, edit := range edits {
		for _, c := range []client.Client{user, varve} {
			changed := vmi.DeepCopy()
			edit(&changed.Spec)
			t.Log(name)
			refused(t, c.Update(t.Context(), changed), "the spec of a VirtualMachineInstance is immutable")
		}
	}
}

// A field that is added to a type must be added to the policy that lists the type's fields.
func TestPolicies_nameEveryField(t *testing.T) {
	t.Parallel()
	cases := []struct {
		file, policy string
		prefix       string
		typ          reflect.Type
		except       string
	}{
		{"instance-spec.yaml", "varve-instance-spec", "object.spec.", reflect.TypeFor[kubevirtv1.VirtualMachineInstanceSpec](), "utilityVolumes"},
		{"status-writers.yaml", "varve-machine-status-writers", "object.?status.", reflect.TypeFor[kubevirtv1.VirtualMachineStatus](), "stateChangeRequests"},
	}
	for _, c := range cases {
		content, err := os.ReadFile("../../deploy/admission/" + c.file)
		admitted(t, err)
		_, policy, _ := strings.Cut(string(content), "name: "+c.policy+"\n")
		policy, _, _ = strings.Cut(policy, "\n---\n")
		for i := range c.typ.NumField() {
			name, _, _ := strings.Cut(c.typ.Field(i).Tag.Get("json"), ",")
			named := strings.Contains(policy, c.prefix+name+" ") || strings.Contains(policy, c.prefix+"?"+name+" ") || strings.Contains(policy, c.prefix+"?"+name+".")
			if named == (name == c.except) {
				t.Errorf("%s: field %s: named is %v", c.file, name, named)
			}
		}
	}
}

func TestStatus_isWrittenByVarveOnly(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user, varve := cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.Controller)
	const text = "only Varve's components write status"

	vmi, backup, tracker, vm, export := newInstance(ns), newBackup(ns), newTracker(ns), newMachine(ns), newExport(ns)
	snapshot := gen.MachineSnapshot(gen.Meta(ns, "s"))
	content, migration := &vmsnapshotv1.VirtualMachineSnapshotContent{ObjectMeta: gen.Meta(ns, "c")}, newMigration(ns)
	all := []client.Object{vmi, backup, tracker, vm, export, snapshot, content, migration}
	for _, o := range all {
		admitted(t, user.Create(t.Context(), o))
	}
	vmi.Status.Phase = kubevirtv1.PhaseRunning
	backup.Status.Phase = backupv1.BackupCopied
	migration.Status.Phase = kubevirtv1.MigrationSucceeded
	tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "forged", CreationTime: metav1.Now()}
	vm.Status.Ready = true
	vm.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	export.Status.Phase = exportv1.ExportReady
	snapshot.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{ReadyToUse: ptr.To(true)}
	content.Status = &vmsnapshotv1.VirtualMachineSnapshotContentStatus{ReadyToUse: ptr.To(true)}
	for _, o := range all {
		for _, who := range []controlplane.User{controlplane.Plain, controlplane.Admin, otherAccount} {
			refused(t, cluster.Client(t, who).Status().Update(t.Context(), o.DeepCopyObject().(client.Object)), text)
		}
		admitted(t, varve.Status().Update(t.Context(), o))
	}
	// A typed client does not always send back what it read: an unset time becomes null.
	admitted(t, varve.Status().Patch(t.Context(), vm, client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-11-20T00:00:00Z"}]}}`))))
	// Users request starts and stops in status, and may change nothing else there.
	vm.Status.StateChangeRequests = []kubevirtv1.StateChangeRequest{{Action: kubevirtv1.StartRequest}}
	admitted(t, user.Status().Update(t.Context(), vm))
	vm.Status.Created = true
	refused(t, user.Status().Update(t.Context(), vm), "others may write stateChangeRequests")
	vm.Status.Created = false
	vm.Status.Conditions[0].Status = "False"
	refused(t, user.Status().Update(t.Context(), vm), "others may write stateChangeRequests")
	fresh := newMachine(ns)
	fresh.Name = "never-reconciled"
	admitted(t, user.Create(t.Context(), fresh))
	fresh.Status.StateChangeRequests = vm.Status.StateChangeRequests
	admitted(t, user.Status().Update(t.Context(), fresh))
}

func TestConfiguration_refusesALimitThatIsNone(t *testing.T) {
	t.Parallel()
	admin := cluster.Client(t, controlplane.Admin)
	kv := controlplane.DefaultKubeVirt()
	kv.Namespace = cluster.Namespace(t)
	admitted(t, admin.Create(t.Context(), kv))
	for _, value := range []string{"", "0", "-1", "many", "1000", "1.5"} {
		kv.Annotations = map[string]string{layout.AnnotationCopiesPerNode: value}
		refused(t, admin.Update(t.Context(), kv.DeepCopy()), "must be a number from 1 to 999")
	}
	kv.Annotations[layout.AnnotationCopiesPerNode] = "16"
	admitted(t, admin.Update(t.Context(), kv))
}

func TestEndedLabel_isVarvesAlone(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user, varve := cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.Controller)
	const text = "only Varve's controller sets the label"
	labelled := newBackup(ns)
	labelled.Labels = map[string]string{layout.LabelEnded: "true", "mine": "1"}
	for _, who := range []controlplane.User{controlplane.Plain, otherAccount, controlplane.HandlerOn("node-1")} {
		refused(t, cluster.Client(t, who).Create(t.Context(), labelled.DeepCopy()), text)
	}
	b := newBackup(ns)
	b.Labels = map[string]string{"mine": "1"}
	admitted(t, user.Create(t.Context(), b))
	b.Labels[layout.LabelEnded] = "true"
	refused(t, user.Update(t.Context(), b.DeepCopy()), text)
	admitted(t, varve.Update(t.Context(), b))
	b.Labels["mine"] = "2"
	admitted(t, user.Update(t.Context(), b))
	delete(b.Labels, layout.LabelEnded)
	refused(t, user.Update(t.Context(), b.DeepCopy()), text)
	b.Labels = nil
	refused(t, user.Update(t.Context(), b.DeepCopy()), text)
}

// Only the controller knows whether the restore points of a backup are published.
func TestStoredAnnotation_isVarvesAlone(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user, varve := cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.Controller)
	const text = "only Varve's controller sets the annotation"
	stored := newBackup(ns)
	stored.Annotations = map[string]string{layout.AnnotationStored: "true", "mine": "1"}
	for _, who := range []controlplane.User{controlplane.Plain, otherAccount, controlplane.HandlerOn("node-1")} {
		refused(t, cluster.Client(t, who).Create(t.Context(), stored.DeepCopy()), text)
	}
	b := newBackup(ns)
	b.Annotations = map[string]string{"mine": "1"}
	admitted(t, user.Create(t.Context(), b))
	b.Annotations[layout.AnnotationStored] = "true"
	for _, who := range []controlplane.User{controlplane.Plain, otherAccount, controlplane.HandlerOn("node-1")} {
		refused(t, cluster.Client(t, who).Update(t.Context(), b.DeepCopy()), text)
	}
	admitted(t, varve.Update(t.Context(), b))
	b.Annotations["mine"] = "2"
	admitted(t, user.Update(t.Context(), b))
	b.Annotations[layout.AnnotationStored] = "false"
	refused(t, user.Update(t.Context(), b.DeepCopy()), text)
	b.Annotations = nil
	refused(t, user.Update(t.Context(), b.DeepCopy()), text)
}

// A backup that loses the annotation is somebody else's, and its DataUploads wait for it.
func TestGroupAnnotation_isVarvesAlone(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	varve := cluster.Client(t, controlplane.Controller)
	const text = "only Varve's controller sets the annotation"
	b := newBackup(ns)
	b.Annotations = map[string]string{datamove.AnnotationGroup: "varve/monday", "mine": "1"}
	admitted(t, varve.Create(t.Context(), b))
	for _, who := range []controlplane.User{controlplane.Plain, otherAccount, controlplane.HandlerOn("node-1")} {
		user := cluster.Client(t, who)
		for _, changed := range []map[string]string{nil, {"mine": "1"}, {datamove.AnnotationGroup: "varve/tuesday"}} {
			b := b.DeepCopy()
			b.Annotations = changed
			refused(t, user.Update(t.Context(), b), text)
		}
	}
	user := cluster.Client(t, controlplane.Plain)
	b.Annotations["mine"] = "2"
	admitted(t, user.Update(t.Context(), b))
	delete(b.Annotations, datamove.AnnotationGroup)
	admitted(t, varve.Update(t.Context(), b))
	added := b.DeepCopy()
	added.Annotations[datamove.AnnotationGroup] = "varve/monday"
	refused(t, user.Update(t.Context(), added), text)
	made := newBackup(ns)
	made.Name, made.Annotations = "made-by-hand", added.Annotations
	refused(t, user.Create(t.Context(), made), text)
}

// TestFeatureGates changes the cluster's configuration, so it does not run in parallel.
func TestFeatureGates(t *testing.T) {
	ns := cluster.Namespace(t)
	admin, varve := cluster.Client(t, controlplane.Admin), cluster.Client(t, controlplane.Controller)
	kv := controlplane.DefaultKubeVirt()
	all := slices.Clone(kv.Spec.Configuration.DeveloperConfiguration.FeatureGates)
	gates := func(want []string) {
		controlplane.Update(t, admin, kv, false, func(kv *kubevirtv1.KubeVirt) {
			kv.Spec.Configuration.DeveloperConfiguration = &kubevirtv1.DeveloperConfiguration{FeatureGates: want, UseEmulation: true}
		})
	}
	defer gates(all)

	attached := newInstance(ns)
	attached.Name = "attached"
	attached.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
	admitted(t, varve.Create(t.Context(), attached))

	gates(nil)
	where := "add it to spec.configuration.developerConfiguration.featureGates of KubeVirt varve/kubevirt"
	eventuallyRefused := func(o client.Object, text string) {
		t.Helper()
		controlplane.Eventually(t, func() error { // the policy sees the configuration after a moment
			err := varve.Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), where) {
				return &unexpected{err}
			}
			return nil
		})
	}
	eventuallyRefused(newBackup(ns), "feature gate IncrementalBackup is off")
	eventuallyRefused(newTracker(ns), "feature gate IncrementalBackup is off")
	eventuallyRefused(newExport(ns), "feature gate VMExport is off")
	adds := newInstance(ns)
	adds.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
	eventuallyRefused(adds, "feature gate UtilityVolumes is off")
	admitted(t, varve.Create(t.Context(), newInstance(ns)))

	// An attached volume can be detached with the gate off.
	attached.Spec.UtilityVolumes = nil
	admitted(t, varve.Update(t.Context(), attached))

	gates([]string{kubevirtv1.IncrementalBackup})
	controlplane.Eventually(t, func() error { return varve.Create(t.Context(), newBackup(ns), client.DryRunAll) })
	eventuallyRefused(adds, "feature gate UtilityVolumes is off")
	gates([]string{kubevirtv1.VMExport})
	controlplane.Eventually(t, func() error { return varve.Create(t.Context(), newExport(ns), client.DryRunAll) })

	// Without any configuration the backup controller decides.
	admitted(t, admin.Delete(t.Context(), kv))
	controlplane.Eventually(t, func() error { return varve.Create(t.Context(), newBackup(ns), client.DryRunAll) })
	kv = controlplane.DefaultKubeVirt()
	admitted(t, admin.Create(t.Context(), kv))
	controlplane.Eventually(t, func() error { return varve.Create(t.Context(), newBackup(ns), client.DryRunAll) })
}

// TestFeatureGates_admitWhatTheyCannotJudge installs the policy of backups with a parameter kind that the API server
// does not know. KubeVirt is such a kind for up to half a minute after an API server has started, and a CronJob
// creates its backup only once.
func TestFeatureGates_admitWhatTheyCannotJudge(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	admin, user := cluster.Client(t, controlplane.Admin), cluster.Client(t, controlplane.Plain)
	policy, binding := gatePolicy(t, "varve-gate-incremental-backup")
	policy.Name, binding.Name, binding.Spec.PolicyName = "test-"+ns, "test-"+ns, "test-"+ns
	policy.Spec.ParamKind.Kind = "NotServedYet"
	policy.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	shipped := policy.Spec.FailurePolicy
	policy.Spec.FailurePolicy = ptr.To(admissionv1.Fail)
	admitted(t, admin.Create(t.Context(), policy))
	admitted(t, admin.Create(t.Context(), binding))
	// With failure policy Fail the policy refuses, which shows that it is in force.
	controlplane.Eventually(t, func() error {
		if err := user.Create(t.Context(), newBackup(ns), client.DryRunAll); err == nil || !strings.Contains(err.Error(), policy.Name) {
			return &unexpected{err}
		}
		return nil
	})
	policy.Spec.FailurePolicy = shipped
	admitted(t, admin.Update(t.Context(), policy))
	controlplane.Eventually(t, func() error { return user.Create(t.Context(), newBackup(ns), client.DryRunAll) })
}

// gatePolicy reads a policy and its binding from the installed manifest.
func gatePolicy(t *testing.T, name string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	file, err := os.Open("../../deploy/admission/feature-gates.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // only read
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); err != nil {
			break
		}
		var kind metav1.PartialObjectMetadata
		admitted(t, json.Unmarshal(raw.Raw, &kind))
		switch {
		case kind.Name != name:
		case kind.Kind == "ValidatingAdmissionPolicy":
			admitted(t, json.Unmarshal(raw.Raw, policy))
		default:
			admitted(t, json.Unmarshal(raw.Raw, binding))
		}
	}
	if policy.Name == "" || binding.Name == "" {
		t.Fatalf("no policy %s with a binding", name)
	}
	return policy, binding
}

type unexpected struct{ err error }

func (u *unexpected) Error() string {
	if u.err == nil {
		return "admitted"
	}
	return "unexpected refusal: " + u.err.Error()
}
