//go:build controlplane

package admission

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// bindRole gives a user the rights of a ClusterRole in a namespace until the test ends.
func bindRole(t *testing.T, ns, role string, user controlplane.User) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: gen.Meta(ns, user.Name+"-"+role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Name}},
	}
	admin := cluster.Client(t, controlplane.Admin)
	admitted(t, admin.Create(t.Context(), binding))
	t.Cleanup(func() { _ = admin.Delete(context.Background(), binding) })
}

// tenant returns the client of a user who may edit machines, pods and claims of a namespace, and no more.
func tenant(t *testing.T, ns string) client.Client {
	t.Helper()
	admitted(t, cluster.InstallRoles(t.Context()))
	user := controlplane.User{Name: "tenant-" + ns, Restricted: true}
	bindRole(t, ns, "varve-edit", user)
	admin := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-tenant-" + ns}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"pods", "pods/status", "persistentvolumeclaims"}, Verbs: []string{"get", "create", "update", "patch", "delete"},
	}}}
	admitted(t, cluster.Client(t, controlplane.Admin).Create(t.Context(), admin))
	bindRole(t, ns, admin.Name, user)
	c := cluster.Client(t, user)
	// The API server learns of roles and bindings from its own watches.
	controlplane.Eventually(t, func() error {
		for _, o := range []client.Object{&corev1.Pod{}, &kubevirtv1.VirtualMachine{}} {
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "absent"}, o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the role is not in force yet: %w", err)
			}
		}
		return nil
	})
	return c
}

func TestMetadata_thatVarveReliesOnIsProtected(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user, varve := tenant(t, ns), cluster.Client(t, controlplane.Controller)

	vmi, backup, tracker := newInstance(ns), newBackup(ns), newTracker(ns)
	vmi.Labels = map[string]string{layout.LabelNodeName: "node-1"}
	vmi.Annotations = map[string]string{layout.AnnotationTracking: "true"}
	vmi.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "vm", Controller: ptr.To(true)}}
	pod := gen.Pod(gen.Meta(ns, "launcher"))
	pod.Finalizers = []string{"varvebackup.io/launcher"}
	pod.Labels = map[string]string{layout.LabelApp: "virt-launcher", layout.LabelCreatedBy: "uid", layout.LabelAttachment: "u", layout.LabelVM: "vm"}
	claim := gen.Claim(gen.Meta(ns, "claim"))
	claim.Annotations = map[string]string{"varvebackup.io/run-epoch": "7"}
	migration := newMigration(ns)
	migration.Labels = map[string]string{layout.LabelMigrationTarget: "node-1"}
	for _, o := range []client.Object{vmi, backup, tracker, pod, claim, migration} {
		o.SetFinalizers(append(o.GetFinalizers(), "varvebackup.io/test"))
		if o == client.Object(vmi) {
			o.SetFinalizers([]string{layout.FinalizerInstance})
		}
		admitted(t, varve.Create(t.Context(), o))
	}
	for name, c := range map[string]struct {
		object client.Object
		edit   func(client.Object)
		says   string // empty: a user may do it
	}{
		"the node's label":      {vmi, func(o client.Object) { o.SetLabels(map[string]string{layout.LabelNodeName: "node-2"}) }, "only Varve "},
		"no node's label":       {vmi, func(o client.Object) { o.SetLabels(nil) }, "only Varve "},
		"no tracking":           {vmi, func(o client.Object) { o.SetAnnotations(nil) }, "only Varve "},
		"an instance's owner":   {vmi, func(o client.Object) { o.SetOwnerReferences(nil) }, "finalizers and owners"},
		"an instance's hold":    {vmi, func(o client.Object) { o.SetFinalizers(nil) }, "finalizers and owners"},
		"a forced stop":         {vmi, func(o client.Object) { o.GetAnnotations()[layout.AnnotationForceStop] = "true" }, ""},
		"a backup's hold":       {backup, func(o client.Object) { o.SetFinalizers(nil) }, "only Varve changes its finalizers"},
		"a tracker's hold":      {tracker, func(o client.Object) { o.SetFinalizers(nil) }, "only Varve changes its finalizers"},
		"a tracker's own label": {tracker, func(o client.Object) { o.SetLabels(map[string]string{"mine": "yes"}) }, ""},
		"a run's epoch":         {claim, func(o client.Object) { o.GetAnnotations()["varvebackup.io/run-epoch"] = "6" }, "only Varve "},
		"no run's epoch":        {claim, func(o client.Object) { o.SetAnnotations(nil) }, "only Varve "},
		"another epoch":         {claim, func(o client.Object) { o.GetAnnotations()["varvebackup.io/run"] = "6" }, "only Varve "},
		"the content's number":  {claim, func(o client.Object) { o.GetAnnotations()[layout.AnnotationContentGeneration] = "8" }, ""},
		"a pod's instance":      {pod, func(o client.Object) { o.GetLabels()[layout.LabelCreatedBy] = "victim" }, "only Varve "},
		"a pod that hides":      {pod, func(o client.Object) { o.GetLabels()[layout.LabelApp] = "other" }, "only Varve "},
		"a pod of another":      {pod, func(o client.Object) { o.GetLabels()[layout.LabelVM] = "other" }, "only Varve "},
		"a pod of nobody":       {pod, func(o client.Object) { delete(o.GetLabels(), layout.LabelVM) }, "only Varve "},
		"a pod of a migration": {
			pod, func(o client.Object) { o.GetLabels()[layout.LabelMigrationJob] = "m" },
			"only Varve ",
		},
		"a migration's target": {
			migration,
			func(o client.Object) { o.SetLabels(map[string]string{layout.LabelMigrationTarget: "node-2"}) }, "only Varve ",
		},
		"no migration's target": {migration, func(o client.Object) { o.SetLabels(nil) }, "only Varve "},
		"a migration's hold": {
			migration, func(o client.Object) { o.SetFinalizers(nil) },
			"only Varve changes the finalizers of a migration",
		},
		"a migration's own":      {migration, func(o client.Object) { o.GetLabels()["mine"] = "yes" }, ""},
		"a pod's hold":           {pod, func(o client.Object) { o.SetFinalizers([]string{"varvebackup.io/test"}) }, "only Varve creates and releases"},
		"a pod's own annotation": {pod, func(o client.Object) { o.SetAnnotations(map[string]string{"mine": "yes"}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := c.object.DeepCopyObject().(client.Object)
			c.edit(changed)
			patch := client.MergeFrom(c.object)
			err := user.Patch(t.Context(), changed, patch, client.DryRunAll)
			if c.says == "" {
				admitted(t, err)
				return
			}
			refused(t, err, c.says)
			changed = c.object.DeepCopyObject().(client.Object)
			c.edit(changed)
			admitted(t, varve.Patch(t.Context(), changed, patch, client.DryRunAll))
		})
	}
}

func TestMetadata_ofPodsIsNotForged(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user := tenant(t, ns)
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		says string
	}{
		"an instance's": {func(p *corev1.Pod) { p.Labels = map[string]string{layout.LabelCreatedBy: "uid"} }, "only Varve "},
		"an attachment": {func(p *corev1.Pod) { p.Labels = map[string]string{layout.LabelAttachment: "u"} }, "only Varve "},
		"owned": {func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "uid", Controller: ptr.To(true)}}
		}, "only Varve creates and releases"},
		"held":               {func(p *corev1.Pod) { p.Finalizers = []string{"varvebackup.io/launcher"} }, "only Varve creates and releases"},
		"a pod like another": {func(*corev1.Pod) {}, ""},
	} {
		pod := gen.Pod(gen.Meta(ns, "mine"))
		c.edit(pod)
		t.Log(name)
		err := user.Create(t.Context(), pod, client.DryRunAll)
		if c.says == "" {
			admitted(t, err)
			continue
		}
		refused(t, err, c.says)
	}
}

// The API server allows whoever may write a pod's status to change its labels and finalizers, too.
func TestMetadata_ofPodsIsNotForgedByStatus(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	user := tenant(t, ns)
	pod := gen.Pod(gen.Meta(ns, "mine"))
	admitted(t, user.Create(t.Context(), pod))
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		says string
	}{
		"an instance's": {func(p *corev1.Pod) { p.Labels = map[string]string{layout.LabelCreatedBy: "uid"} }, "only Varve "},
		"held":          {func(p *corev1.Pod) { p.Finalizers = []string{layout.FinalizerLauncher} }, "only Varve creates and releases"},
		"a status":      {func(p *corev1.Pod) { p.Status.Message = "mine" }, ""},
	} {
		changed := pod.DeepCopy()
		c.edit(changed)
		t.Log(name)
		err := user.Status().Patch(t.Context(), changed, client.MergeFrom(pod), client.DryRunAll)
		if c.says == "" {
			admitted(t, err)
			continue
		}
		refused(t, err, c.says)
	}
}
