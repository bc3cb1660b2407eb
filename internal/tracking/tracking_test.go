package tracking

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

func config(gates []string, selectors *kubevirtv1.ChangedBlockTrackingSelectors) *kubevirtv1.KubeVirt {
	kv := &kubevirtv1.KubeVirt{}
	kv.Spec.Configuration.DeveloperConfiguration = &kubevirtv1.DeveloperConfiguration{FeatureGates: gates}
	kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = selectors
	return kv
}

func TestSelected(t *testing.T) {
	t.Parallel()
	gate := []string{kubevirtv1.IncrementalBackup}
	backup := &metav1.LabelSelector{MatchLabels: map[string]string{"backup": "yes"}}
	yes := map[string]string{"backup": "yes"}
	for name, c := range map[string]struct {
		kv                 *kubevirtv1.KubeVirt
		namespace, machine map[string]string
		want               bool
	}{
		"no configuration":          {nil, yes, yes, false},
		"gate off":                  {config(nil, &kubevirtv1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: backup}), nil, yes, false},
		"no selectors":              {config(gate, nil), yes, yes, false},
		"both absent":               {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{}), yes, yes, false},
		"machine matches":           {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: backup}), nil, yes, true},
		"machine selector, ns only": {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: backup}), yes, nil, false},
		"namespace matches":         {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{NamespaceLabelSelector: backup}), yes, nil, true},
		"either is enough":          {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{NamespaceLabelSelector: backup, VirtualMachineLabelSelector: backup}), yes, nil, true},
		"empty matches everything":  {config(gate, &kubevirtv1.ChangedBlockTrackingSelectors{NamespaceLabelSelector: &metav1.LabelSelector{}}), nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Selected(c.kv, c.namespace, c.machine)
			if err != nil || got != c.want {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestSelected_namesTheInvalidSelector(t *testing.T) {
	t.Parallel()
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	_, err := Selected(config([]string{kubevirtv1.IncrementalBackup}, &kubevirtv1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: bad}), nil, nil)
	if err == nil {
		t.Fatal("an invalid selector was accepted")
	}
}

func TestEligibleVolumes(t *testing.T) {
	t.Parallel()
	claim := func(readOnly bool) *kubevirtv1.PersistentVolumeClaimVolumeSource {
		return &kubevirtv1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}
	}
	disk := func(name string, readOnly, shared bool) kubevirtv1.Disk {
		return kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{ReadOnly: readOnly}, Shareable: ptr.To(shared)}
	}
	spec := &kubevirtv1.VirtualMachineInstanceSpec{
		Volumes: []kubevirtv1.Volume{
			{Name: "root", PersistentVolumeClaim: claim(false)},
			{Name: "iso", PersistentVolumeClaim: claim(false)},
			{Name: "shared", PersistentVolumeClaim: claim(false)},
			{Name: "frozen", PersistentVolumeClaim: claim(true)},
			{Name: "data", PersistentVolumeClaim: claim(false)},
		},
	}
	spec.Domain.Devices.Disks = []kubevirtv1.Disk{
		disk("data", false, false), disk("iso", true, false), disk("shared", false, true), disk("frozen", false, false), disk("root", false, false),
	}
	if diff := cmp.Diff([]string{"root", "data"}, EligibleVolumes(spec)); diff != "" {
		t.Error(diff)
	}
}

func TestClusterSize_keepsFullBackupsSparse(t *testing.T) {
	t.Parallel()
	const gib, tib = int64(1) << 30, int64(1) << 40
	for disk, want := range map[int64]int{
		1: 64 << 10, 18 * gib: 64 << 10, 19 * gib: 128 << 10, 256 * gib: 256 << 10, tib: 512 << 10, 4 * tib: 1 << 20, 64 * tib: 2 << 20,
	} {
		if got := ClusterSize(disk); got != want {
			t.Errorf("%d bytes: cluster of %d bytes, want %d", disk, got, want)
		}
	}
}

func TestStateClaimRequest_hasRoomForGrowth(t *testing.T) {
	t.Parallel()
	const gib, tib = int64(1) << 30, int64(1) << 40
	for _, disks := range [][]int64{{gib}, {10 * gib}, {100 * gib, tib}, {tib, tib, tib}, {10 * tib}, {64 * tib}} {
		request := StateClaimRequest(disks)
		var all int64
		doubled := slices.Clone(disks)
		for i, n := range disks {
			all += n
			doubled[i] *= 2
		}
		for what, grown := range map[string][]int64{
			"another disk of 100 GiB": append(slices.Clone(disks), 100*gib), "a disk as large as the largest": append(slices.Clone(disks), slices.Max(disks)), "the disks doubled": doubled,
		} {
			if need := StateClaimSize(grown); need > request {
				t.Errorf("%v, %s: needs %d bytes, the claim has %d", disks, what, need, request)
			}
		}
		if request%gib != 0 || request > max(gib, all/1000) {
			t.Errorf("%v: %d bytes requested for %d of disks", disks, request, all)
		}
	}
	if request := StateClaimRequest([]int64{10 * gib}); StateClaimSize([]int64{10 * gib, tib, tib, tib, tib, tib, tib, tib, tib}) > request {
		t.Errorf("%d bytes have no room for eight more disks of 1 TiB", request)
	}
}

func TestStateClaim_holdsTablesAndBitmaps(t *testing.T) {
	t.Parallel()
	for _, disks := range [][]int64{{1}, {1 << 30, 10 << 30}, {1 << 40}, {64 << 40}} {
		var need int64
		for _, n := range disks {
			need += n/int64(ClusterSize(n))*8 + 4*(n>>19)
		}
		if got := StateClaimSize(disks); got < need {
			t.Errorf("%v: %d bytes, but tables and four bitmaps need %d", disks, got, need)
		}
	}
}
