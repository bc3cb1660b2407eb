package harvesterrestore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
)

func node(name string, ready corev1.ConditionStatus, edit ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "fast"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, f := range edit {
		f(&n)
	}
	return n
}

// local is a cluster with the StorageClass of the backup's disks.
var local = map[string]bool{"local": false}

func newRestore() *harvesterv1.VirtualMachineRestore {
	r := &harvesterv1.VirtualMachineRestore{}
	r.Spec.NewVM = true
	return r
}

func backup(spec string) *harvesterv1.VirtualMachineBackup {
	b := &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "monday", UID: "b"}}
	b.Status = harvesterv1.VirtualMachineBackupStatus{
		NodeName: "node2", ReadyToUse: ptr.To(true), Location: &harvesterv1.LocationReference{
			Namespace: "varve",
			Name:      "shelf",
		},
		Source: &harvesterv1.VirtualMachineSourceSpec{Spec: runtime.RawExtension{Raw: []byte(spec)}},
	}
	for _, name := range []string{"root", "data"} {
		v := harvesterv1.VolumeBackup{
			VolumeName: name,
			SnapshotID: "varve1.disk.0123456789abcdef0123456789abcdef.app", VolumeSize: 1 << 20,
		}
		v.PersistentVolumeClaim.Spec.StorageClassName = ptr.To("local")
		b.Status.VolumeBackups = append(b.Status.VolumeBackups, v)
	}
	return b
}

// Disks on storage that belongs to a node must come back on one node: no node could run the machine otherwise.
func TestPlan_localDisksComeBackTogether(t *testing.T) {
	t.Parallel()
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "control-plane", Effect: corev1.TaintEffectNoSchedule}}
	}
	slow := func(n *corev1.Node) { n.Labels = nil }
	for name, c := range map[string]struct {
		spec  string
		nodes []corev1.Node
		want  string
	}{
		"where the machine ran":           {`{}`, []corev1.Node{node("node1", "True"), node("node2", "True")}, "node2"},
		"its node is gone":                {`{}`, []corev1.Node{node("node3", "True"), node("node1", "True")}, "node1"},
		"its node is cordoned":            {`{}`, []corev1.Node{node("node2", "True", cordoned), node("node3", "True")}, "node3"},
		"its node is not ready":           {`{}`, []corev1.Node{node("node2", "Unknown"), node("node3", "True")}, "node3"},
		"the machine selects nodes":       {`{"template":{"spec":{"nodeSelector":{"disk":"fast"}}}}`, []corev1.Node{node("node2", "True", slow), node("node3", "True")}, "node3"},
		"a node is for others alone":      {`{}`, []corev1.Node{node("cp", "True", tainted), node("node3", "True")}, "node3"},
		"no node can take pods right now": {`{}`, []corev1.Node{node("node2", "False")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for waiting, want := range map[bool]string{true: c.want, false: ""} {
				var s harvesterv1.VirtualMachineRestoreStatus
				in := &input{
					restore: newRestore(), backup: backup(c.spec), nodes: c.nodes,
					waiting: map[string]bool{"local": waiting},
				}
				if refused := makePlan(in, &s); refused != "" {
					t.Fatal(refused)
				}
				for _, v := range s.VolumeRestores {
					if got := v.PersistentVolumeClaim.ObjectMeta.Annotations[annotationSelectedNode]; got != want {
						t.Errorf("volume %s is made for %q, want %q", v.VolumeName, got, want)
					}
				}
			}
		})
	}
}

func TestPlan_refusesTheDataOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	b := backup(`{}`)
	b.Status.VolumeBackups[1].SnapshotID = "varve1.disk.0123456789abcdef0123456789abcdef.other"
	var s harvesterv1.VirtualMachineRestoreStatus
	if refused := makePlan(&input{restore: newRestore(), backup: b, waiting: local},
		&s); !strings.Contains(refused, "in the repository of namespace other") || s.BackupUID != "" {
		t.Errorf("%q, %+v", refused, s)
	}
}

// A machine that is restored beside the one that was backed up must not write to the disks of that one.
func TestPlan_takesNoDiskOfAnotherMachine(t *testing.T) {
	t.Parallel()
	b := backup(`{"template":{"spec":{"volumes":[{"name":"root"},{"name":"data"},{"name":"swap","persistentVolumeClaim":{"claimName":"web-swap"}},{"name":"shared","persistentVolumeClaim":{"claimName":"s"}}],` +
		`"domain":{"devices":{"disks":[{"name":"root"},{"name":"data"},{"name":"swap"},{"name":"shared"}]}}}}}`)
	b.Status.Source.ObjectMeta = harvesterv1.ObjectMetadata{Namespace: "app", Name: "web"}
	b.Status.ExcludedVolumes = []harvesterv1.ExcludedVolume{
		{Name: "swap", Reason: harvesterv1.ExcludedByUser},
		{Name: "shared", Reason: harvesterv1.Shareable},
		{Name: "cloud", Reason: harvesterv1.NoClaim},
	}
	for target, want := range map[types.NamespacedName]string{
		{Namespace: "app", Name: "web"}: "", {Namespace: "app", Name: "look"}: "swap",
		{Namespace: "other", Name: "web"}: "swap shared",
	} {
		r := newRestore()
		r.Namespace = target.Namespace
		r.Spec.Target.Name = target.Name
		var s harvesterv1.VirtualMachineRestoreStatus
		if refused := makePlan(&input{restore: r, backup: b, waiting: local}, &s); refused != "" {
			t.Fatal(refused)
		}
		without := volumeNames(s.ExcludedVolumes)
		if got := strings.Join(without, " "); got != want {
			t.Errorf("%s is restored without %q, want %q", target, got, want)
		}
		vm, _, err := definition.Restored(b.Status.Source,
			definition.Target{Namespace: target.Namespace, Name: target.Name, Without: without})
		if err != nil {
			t.Fatal(err)
		}
		disks, _, _ := unstructured.NestedSlice(vm.Object, "spec", "template", "spec", "domain", "devices", "disks")
		volumes, _, _ := unstructured.NestedSlice(vm.Object, "spec", "template", "spec", "volumes")
		if len(disks) != 4-len(without) || len(volumes) != 4-len(without) {
			t.Errorf("%s has %d disks and %d volumes, without %v", target, len(disks), len(volumes), without)
		}
	}
}

func TestNames_areValidHoweverLong(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long.name-", 20)[:200]
	r := &harvesterv1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{
		Name: long,
		UID:  "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e",
	}}
	volume := strings.Repeat("v", 63)
	for _, name := range []string{claimName(long, r, volume), downloadName(r, volume), claimName("monday", r, "root"), downloadName(r, "root")} {
		if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
			t.Errorf("%s: %v", name, why)
		}
	}
}

// A class that the cluster does not have is told by its name, and not waited for.
func TestPlan_storageClasses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ mapping, known, want string }{
		"as they were":        {"", "local,slow", "root local, data slow"},
		"one has another one": {"local=fast", "fast,slow", "root fast, data slow"},
		"both have":           {"local=fast, slow=fast", "fast", "root fast, data fast"},
		"every other one":     {"slow=local,*=fast", "fast,local", "root fast, data local"},
		"every one, in short": {"=fast", "fast", "root fast, data fast"},
		"one that does not exist": {
			"", "local",
			"volume data of VMBackup app/monday: StorageClass slow does not exist in this cluster: say in the " +
				"annotation varvebackup.io/storage-class-map, as slow=NEW",
		},
		"to one that does not":      {"slow=fats", "local", `names StorageClass "fats", which does not exist`},
		"any to one that does not":  {"*=fats", "local", `names StorageClass "fats", which does not exist`},
		"from one that no disk has": {"sloe=fast", "local,slow,fast", `names StorageClass "sloe", and no disk has it`},
		"without a new one":         {"slow", "local,slow", `is not of the form old=new,old2=new2: see "slow"`},
		"twice":                     {"slow=a,slow=b", "a,b,local", `see "slow=b"`},
		"every other one twice":     {"*=a,=b", "a,b,local", "for every other one twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r, known := backup(`{}`), newRestore(), map[string]bool{}
			b.Status.VolumeBackups[1].PersistentVolumeClaim.Spec.StorageClassName = ptr.To("slow")
			for i := range b.Status.VolumeBackups {
				b.Status.VolumeBackups[i].PersistentVolumeClaim.Spec.VolumeAttributesClassName = ptr.To("gold")
			}
			r.Annotations = map[string]string{harvesterv1.AnnotationStorageClassMap: c.mapping}
			for class := range strings.SplitSeq(c.known, ",") {
				known[class] = false
			}
			var s harvesterv1.VirtualMachineRestoreStatus
			got := makePlan(&input{restore: r, backup: b, waiting: known}, &s)
			var texts []string
			for i := range s.VolumeRestores {
				spec := s.VolumeRestores[i].PersistentVolumeClaim.Spec
				texts = append(texts, s.VolumeRestores[i].VolumeName+" "+*spec.StorageClassName)
				same := *spec.StorageClassName == *b.Status.VolumeBackups[i].PersistentVolumeClaim.Spec.StorageClassName
				if same != (spec.VolumeAttributesClassName != nil) {
					t.Errorf("a class of attributes of another driver: %+v", spec)
				}
			}
			if got += strings.Join(texts, ", "); !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// What the user wants other than it was is refused by name if it cannot be had.
func TestPlan_disks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ without, sizes, want string }{
		"as they were":            {"", "", "root 1048576, data 1048576"},
		"a larger one":            {"", "root=20Gi", "root 21474836480, data 1048576"},
		"without one":             {"data", "root=1Mi", "root 1048576; without data"},
		"without one on no claim": {"swap", "", "root 1048576, data 1048576; without swap"},
		"without one that is not": {"dta", "", `varvebackup.io/exclude-volumes names "dta", and the machine has no such volume`},
		"without any": {
			"root, data", "",
			"varvebackup.io/exclude-volumes leaves out every disk: keep one",
		},
		"a smaller one": {
			"", "root=1023Ki",
			"volume root of VMBackup app/monday: the annotation varvebackup.io/disk-sizes has 1023Ki as its size, " +
				"and its claim needs 1Mi",
		},
		"a larger one that is not": {"", "dta=1Gi", `varvebackup.io/disk-sizes names "dta", and no such disk is restored`},
		"a larger one that is out": {"data", "data=1Gi", `varvebackup.io/disk-sizes names "data", and no such disk is restored`},
		"a size that is no number": {"", "root=large", `varvebackup.io/disk-sizes has "large" as the size of "root"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r := backup(`{}`), newRestore()
			b.Status.ExcludedVolumes = []harvesterv1.ExcludedVolume{{Name: "swap", Reason: harvesterv1.NoClaim}}
			r.Annotations = map[string]string{
				harvesterv1.AnnotationExcludeVolumes: c.without, harvesterv1.AnnotationDiskSizes: c.sizes,
			}
			var s harvesterv1.VirtualMachineRestoreStatus
			got := makePlan(&input{restore: r, backup: b, waiting: local}, &s)
			var texts []string
			for i := range s.VolumeRestores {
				v := &s.VolumeRestores[i]
				texts = append(texts, fmt.Sprintf("%s %d", v.VolumeName,
					v.PersistentVolumeClaim.Spec.Resources.Requests.Storage().Value()))
			}
			got += strings.Join(texts, ", ")
			if out := volumeNames(s.ExcludedVolumes); len(out) > 0 {
				got += "; without " + strings.Join(out, " ")
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// The status of a machine that has just been halted may still say that it has an instance.
func TestIsAskedToRun(t *testing.T) {
	t.Parallel()
	created := map[string]any{"created": true}
	requested := func(action string) map[string]any {
		return map[string]any{"stateChangeRequests": []any{map[string]any{"action": action}}}
	}
	going := &unstructured.Unstructured{}
	going.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	for name, c := range map[string]struct {
		status   map[string]any
		instance *unstructured.Unstructured
		want     bool
	}{
		"nothing":                {nil, nil, false},
		"an instance that was":   {created, nil, false},
		"an instance that goes":  {created, going, false},
		"an instance":            {nil, &unstructured.Unstructured{}, true},
		"its start is asked for": {requested("Start"), nil, true},
		"its stop was asked for": {requested("Stop"), nil, false},
	} {
		vm := &unstructured.Unstructured{Object: map[string]any{"status": c.status}}
		if got := isAskedToRun(vm, c.instance); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
