package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/checkout"
	"github.com/varvebackup/varve/test/wait"
)

// install creates what an installation of Varve has: its namespace, the KubeVirt object with every feature gate on, and its policies.
func (c *Cluster) install(ctx context.Context, root string) error {
	admin, err := client.New(c.ConfigFor(Admin), client.Options{Scheme: c.Scheme, Mapper: c.mapper})
	if err != nil {
		return err
	}
	c.admin = admin
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: SystemNamespace}},
		everythingForEverybody(),
		DefaultKubeVirt(),
	}
	for _, o := range objects {
		if err := admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	for _, dir := range []string{"admission", "core/admission", "store"} {
		if err := c.installPolicies(ctx, filepath.Join(root, "deploy", dir)); err != nil {
			return err
		}
	}
	return c.waitForPolicies(ctx)
}

// DefaultKubeVirt returns the initial configuration of a control plane: every feature gate, and no selector.
func DefaultKubeVirt() *kubevirtv1.KubeVirt {
	kv := &kubevirtv1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &kubevirtv1.DeveloperConfiguration{
		FeatureGates: []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes, kubevirtv1.VMExport},
		UseEmulation: true,
	}
	return kv
}

func everythingForEverybody() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-everything-for-everybody"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: everything}},
	}
}

// installPolicies applies the ValidatingAdmissionPolicies and their bindings below dir.
func (c *Cluster) installPolicies(ctx context.Context, dir string) error {
	objects, err := read(dir)
	if err != nil {
		return err
	}
	kinds := []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
	for _, o := range objects {
		if !slices.Contains(kinds, o.GetKind()) {
			continue
		}
		if err := c.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// Apply creates every object of a manifest, or of each manifest below a directory. The path is relative to the
// repository's root.
func (c *Cluster) Apply(ctx context.Context, path string) error {
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	objects, err := read(filepath.Join(root, path))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := c.admin.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// InstallRoles applies the roles and bindings of deploy/rbac and deploy/core/rbac for Restricted users, and returns
// when the API server goes by them.
func (c *Cluster) InstallRoles(ctx context.Context) error {
	for _, dir := range []string{"rbac", "core/rbac"} {
		if err := c.Apply(ctx, filepath.Join("deploy", dir)); err != nil {
			return err
		}
	}
	return c.waitForRoles(ctx)
}

// waitForRoles returns when the API server goes by all roles and bindings there are. It learns of the objects of one kind in the order in which
// they were written: a user who may do something by a role and a binding of each kind that were written last shows when it has.
func (c *Cluster) waitForRoles(ctx context.Context) error {
	name := fmt.Sprintf("test-sentinel-%d", time.Now().UnixNano())
	named, namespaced := metav1.ObjectMeta{Name: name}, metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}}
	}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: named, Rules: rule("nodes")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}},
		&rbacv1.Role{ObjectMeta: namespaced, Rules: rule("pods")},
		&rbacv1.RoleBinding{ObjectMeta: namespaced, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}},
	} {
		if err := c.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return wait.For(ctx, 30*time.Second, "the roles to be in force", func(ctx context.Context) (bool, string, error) {
		for _, asked := range []authorizationv1.ResourceAttributes{{Verb: "get", Resource: "nodes"}, {Verb: "get", Resource: "pods", Namespace: SystemNamespace}} {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &asked}}
			if err := c.admin.Create(ctx, review); err != nil || !review.Status.Allowed {
				return false, asked.Resource, err
			}
		}
		return true, "", nil
	})
}

// read returns the objects of the YAML files at or below path. It skips kustomizations.
func read(path string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || filepath.Ext(name) != ".yaml" || filepath.Base(name) == "kustomization.yaml" {
			return nil
		}
		more, err := decode(name)
		objects = append(objects, more...)
		return err
	})
	return objects, err
}

func decode(name string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(string(content)), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		case len(o.Object) > 0:
			objects = append(objects, o)
		}
	}
}

// waitForPolicies returns when the policies are enforced. The API server starts to enforce them all at once, within
// about a second. A policy that is created last and refuses one ConfigMap shows when it has.
func (c *Cluster) waitForPolicies(ctx context.Context) error {
	const name = "test-sentinel"
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				ResourceNames: []string{name},
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "the policies are in force"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	for _, o := range []client.Object{policy, binding} {
		if err := c.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return wait.For(ctx, 30*time.Second, "the policies to be enforced", func(ctx context.Context) (bool, string, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}}
		err := c.admin.Create(ctx, probe, client.DryRunAll)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return true, "", nil
		}
		return false, "", err
	})
}
