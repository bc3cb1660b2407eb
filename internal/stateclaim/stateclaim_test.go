package stateclaim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

const machine = types.UID("machine")

func claim(name string, uid types.UID, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	yes := true
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: uid, OwnerReferences: []metav1.OwnerReference{{UID: machine, Controller: &yes}},
	}}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func from(uid types.UID) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{layout.AnnotationMovesFrom: string(uid)}
	}
}

func going(c *corev1.PersistentVolumeClaim)  { c.DeletionTimestamp = &metav1.Time{} }
func orphan(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil }

func TestFind(t *testing.T) {
	t.Parallel()
	first, second := layout.StatePVC("vm"), layout.SecondStatePVC("vm")
	for name, c := range map[string]struct {
		first, second          *corev1.PersistentVolumeClaim
		wantCurrent, successor string
		free                   string
		going                  []string
	}{
		"none":                              {},
		"the first alone":                   {first: claim(first, "a"), wantCurrent: first, free: second},
		"the second alone, after a move":    {second: claim(second, "b", from("gone")), wantCurrent: second, free: first},
		"a move":                            {first: claim(first, "a"), second: claim(second, "b", from("a")), wantCurrent: first, successor: second, free: second},
		"a move back":                       {first: claim(first, "c", from("b")), second: claim(second, "b", from("gone")), wantCurrent: second, successor: first, free: first},
		"the old one is going":              {first: claim(first, "a", going), second: claim(second, "b", from("a")), wantCurrent: second, free: first, going: []string{first}},
		"the new one is going":              {first: claim(first, "a"), second: claim(second, "b", from("a"), going), wantCurrent: first, free: second, going: []string{second}},
		"only one that is going":            {first: claim(first, "a", going), going: []string{first}},
		"the old one was made anew by hand": {first: claim(first, "other"), second: claim(second, "b", from("a")), wantCurrent: first, free: second},
		"somebody else's first one":         {first: claim(first, "other", orphan), second: claim(second, "b", from("a")), wantCurrent: second, free: first},
		"somebody else's second one":        {first: claim(first, "a"), second: claim(second, "b", orphan), wantCurrent: first, free: second},
		"a forged second one":               {first: claim(first, "a"), second: claim(second, "b", from("a"), orphan), wantCurrent: first, free: second},
		"both of a machine made again":      {first: claim(first, "a", orphan), second: claim(second, "b", from("a"), orphan), wantCurrent: first, successor: second, free: second},
	} {
		got := Find("vm", machine, map[string]*corev1.PersistentVolumeClaim{first: c.first, second: c.second})
		if nameOf(got.Current) != c.wantCurrent || nameOf(got.Successor) != c.successor || !cmp.Equal(got.Going, c.going) {
			t.Errorf("%s: current %q, successor %q, going %v", name, nameOf(got.Current), nameOf(got.Successor), got.Going)
		}
		if got.Current != nil && got.FreeName("vm") != c.free {
			t.Errorf("%s: free name %s", name, got.FreeName("vm"))
		}
		target := c.successor
		if target == "" {
			target = c.wantCurrent
		}
		if nameOf(got.Target()) != target {
			t.Errorf("%s: target %q, want %q", name, nameOf(got.Target()), target)
		}
		for _, n := range []string{first, second} {
			if got.Mounts(n) != (n == c.wantCurrent || n == c.successor) {
				t.Errorf("%s: mounts %s: %v", name, n, got.Mounts(n))
			}
		}
	}
}

func nameOf(c *corev1.PersistentVolumeClaim) string {
	if c == nil {
		return ""
	}
	return c.Name
}

func TestNames_belongToOneMachine(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, vm := range []string{"a", "2-for-a", "for-a", "2", "2-for-2-for-a", "persistent-state-for-a", "persistent-state-2-for-a"} {
		for _, name := range layout.StatePVCs(vm) {
			if other, taken := seen[name]; taken {
				t.Errorf("%s is a claim of %s and of %s", name, other, vm)
			}
			seen[name] = vm
		}
	}
}

func TestHasRoom(t *testing.T) {
	t.Parallel()
	const need = 100
	sized := func(request, capacity, allocated int64, status corev1.ClaimResourceStatus, conditions ...corev1.PersistentVolumeClaimConditionType) *corev1.PersistentVolumeClaim {
		c := claim("c", "c")
		c.Spec.Resources.Requests = storage(request)
		if capacity > 0 {
			c.Status.Capacity = storage(capacity)
		}
		if allocated > 0 {
			c.Status.AllocatedResources = storage(allocated)
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: status}
		}
		for _, t := range conditions {
			c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: t, Status: corev1.ConditionTrue})
		}
		return c
	}
	const pending = corev1.PersistentVolumeClaimFileSystemResizePending
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		"large enough":                  {sized(100, 100, 0, ""), true},
		"too small":                     {sized(99, 99, 0, ""), false},
		"larger than requested":         {sized(50, 100, 0, ""), true},
		"no volume yet":                 {sized(100, 0, 0, ""), true},
		"expansion asked for":           {sized(100, 50, 0, ""), false},
		"expansion runs":                {sized(100, 50, 100, corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimResizing), false},
		"the file system grows at once": {sized(100, 50, 100, corev1.PersistentVolumeClaimNodeResizePending, pending), true},
		"the same, of an older cluster": {sized(100, 50, 0, "", pending), true},
		"an earlier expansion":          {sized(100, 50, 99, corev1.PersistentVolumeClaimNodeResizePending, pending), false},
		"an earlier request":            {sized(99, 50, 99, corev1.PersistentVolumeClaimNodeResizePending, pending), false},
		"the node cannot":               {sized(100, 50, 100, corev1.PersistentVolumeClaimNodeResizeInfeasible, pending), false},
	} {
		if got := HasRoom(c.claim, need); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func storage(bytes int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}

func TestGrowth_survivesTheInstance(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 3, 0, 0, 123, time.FixedZone("", 3600))
	want := Begin(StepExpand, now, "refused")
	annotations, err := want.Write(map[string]string{"other": "stays"})
	if err != nil {
		t.Fatal(err)
	}
	got := GrowthOf(annotations)
	if !got.Equal(want) || !got.Deadline().Equal(now.Truncate(time.Second).Add(ExpandTime)) || annotations["other"] != "stays" {
		t.Errorf("%+v, want %+v; deadline %s; annotations %v", got, want, got.Deadline(), annotations)
	}
	if annotations, err = (Growth{}).Write(annotations); err != nil || GrowthOf(annotations).Step != NoStep || len(annotations) != 1 {
		t.Errorf("%v, %v", annotations, err)
	}
	for _, text := range []string{"", "yes", `{"step":"Shrink","since":"2026-11-29T03:00:00Z"}`, `{"step":"Move","since":7}`} {
		if g := GrowthOf(map[string]string{layout.AnnotationStateGrowth: text}); !g.Equal(Growth{}) {
			t.Errorf("%q: %+v", text, g)
		}
	}
}
