package deploy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// readRoleRules returns the rules of the ClusterRoles of a file, by their names.
func readRoleRules(t *testing.T, file string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	all := map[string][]rbacv1.PolicyRule{}
	for _, o := range readObjects(t, file) {
		if role, ok := o.(*rbacv1.ClusterRole); ok {
			all[role.Name] = role.Rules
		}
	}
	return all
}

func isKubeVirts(r rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(r.APIGroups, func(g string) bool { return strings.HasSuffix(g, "kubevirt.io") })
}

// Beside KubeVirt, the controller writes nothing of KubeVirt's that a user of the namespace could not write: no status,
// no finalizers, no instance.
func TestBeside_writesWhatUsersMay(t *testing.T) {
	t.Parallel()
	rules := readRoleRules(t, "beside/role.yaml")["varve-controller"]
	writes := map[string][]string{}
	for _, r := range rules {
		if !isKubeVirts(r) {
			continue
		}
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					writes[r.APIGroups[0]+"/"+resource] = append(writes[r.APIGroups[0]+"/"+resource], verb)
				}
			}
		}
	}
	want := map[string][]string{
		"kubevirt.io/virtualmachines":                     {"create", "patch", "update"},
		"subresources.kubevirt.io/virtualmachines/start":  {"update"},
		"backup.kubevirt.io/virtualmachinebackups":        {"create", "delete"},
		"backup.kubevirt.io/virtualmachinebackuptrackers": {"create"},
		"export.kubevirt.io/virtualmachineexports":        {"create", "delete"},
		"snapshot.kubevirt.io/virtualmachinesnapshots":    {"create", "delete"},
	}
	if diff := cmp.Diff(want, writes); diff != "" {
		t.Errorf("what the controller writes of KubeVirt's: %s", diff)
	}
}

// A restore that replaces a machine looks which old claims have snapshots, in any namespace.
func TestBeside_listsVolumeSnapshots(t *testing.T) {
	t.Parallel()
	if !slices.ContainsFunc(readRoleRules(t, "beside/role.yaml")["varve-controller"], func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "volumesnapshots") && slices.Contains(r.Verbs, "list")
	}) {
		t.Error("the controller may not list VolumeSnapshots")
	}
}

// Users have the same rights beside KubeVirt, except to its kinds.
func TestBeside_givesUsersTheSameRights(t *testing.T) {
	t.Parallel()
	want := readRoleRules(t, "rbac/users.yaml")
	for name, rules := range want {
		want[name] = slices.DeleteFunc(rules, isKubeVirts)
	}
	if diff := cmp.Diff(want, readRoleRules(t, "beside/users.yaml")); diff != "" {
		t.Errorf("rbac/users.yaml and beside/users.yaml differ: %s", diff)
	}
}
