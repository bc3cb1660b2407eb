package deploy_test

import (
	"maps"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/varvebackup/varve/internal/datamove"
)

// Nobody calls a pod that looks into a storage. One whose storage is mounted calls nobody, and one that looks into a bucket by a role has to
// reach that and the STS.
func TestNetworkPolicies_ofLooksLeaveBucketsInReach(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		look  string
		types []networkingv1.PolicyType
	}{
		"varve-storage-look": {datamove.LookDirectory, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}},
		"varve-bucket-look":  {datamove.LookBucket, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	} {
		policy := find[*networkingv1.NetworkPolicy](t, name)
		if !maps.Equal(policy.Spec.PodSelector.MatchLabels, map[string]string{datamove.LabelLook: want.look}) || !slices.Equal(policy.Spec.PolicyTypes, want.types) ||
			len(policy.Spec.Ingress)+len(policy.Spec.Egress) > 0 {
			t.Errorf("policy %s: %+v", name, policy.Spec)
		}
	}
}
