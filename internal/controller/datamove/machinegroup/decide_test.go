package machinegroup

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// disksOf is a group of DataUploads, one for each volume, which are taken.
func disksOf(volumes ...string) *group {
	g := &group{now: now, namespace: "varve", machines: "shop", name: "web-1"}
	for i, v := range volumes {
		disk := datamove.MachineDisk{
			Machine: "web", Volume: v, Tracker: "daily", ScratchClaim: "scratch",
			Group: "web-1", Disks: len(volumes), Definition: "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e",
		}
		g.members = append(g.members, member{disk: disk, served: true, upload: &velerov2.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: fmt.Sprintf("u%d", i), Finalizers: []string{datamove.Finalizer}},
			Spec:       velerov2.DataUploadSpec{SourceNamespace: "shop", DataMoverConfig: disk.Config()},
			Status:     velerov2.DataUploadStatus{Phase: velerov2.PhaseAccepted, AcceptedByNode: "node1"},
		}})
	}
	return g
}

// serving gives the group its backup, whose point in time is fixed and which all have seen.
func (g *group) serving() *group {
	g.backup = newBackup(g)
	g.backup.UID, g.backup.CreationTimestamp = "b1", metav1.NewTime(now.Add(-time.Minute))
	g.backup.Status.Phase = backupv1.BackupServing
	for i := range g.members {
		g.members[i].backup = "b1"
	}
	return g
}

func (g *group) ends(phase velerov2.Phase, members ...int) *group {
	for _, i := range members {
		g.members[i].upload.Status.Phase = phase
		g.members[i].moved = phase == velerov2.PhaseCompleted
	}
	return g
}

// claimDisks has all DataUploads name a number of disks.
func (g *group) claimDisks(n int) {
	for i := range g.members {
		g.members[i].disk.Disks = n
	}
}

func with(g *group, edit func(*group)) *group {
	edit(g)
	return g
}

func TestDecide(t *testing.T) {
	t.Parallel()
	deleted := &metav1.Time{Time: now}
	for name, c := range map[string]struct {
		group *group
		want  verdict
	}{
		"nobody": {&group{}, wait},
		"all are there, and one is taken": {with(disksOf("a", "b"),
			func(g *group) { g.members[1].upload.Status.Phase = "" }), create},
		"none is taken": {with(disksOf("a"),
			func(g *group) { g.members[0].upload.Status.Phase = velerov2.PhaseNew }), wait},
		"one is not there": {
			with(disksOf("a", "b"), func(g *group) { g.members = g.members[:1] }),
			wait,
		},
		"one too many": {with(disksOf("a", "b"),
			func(g *group) { g.members = append(g.members, disksOf("c", "d").members[0]) }), wait},
		"one volume twice": {disksOf("a", "a"), wait},
		"another machine": {with(disksOf("a", "b"),
			func(g *group) { g.members[1].disk.Machine = "db" }), wait},
		"another tracker": {with(disksOf("a", "b"),
			func(g *group) { g.members[1].disk.Tracker = "" }), wait},
		"another definition": {with(disksOf("a", "b"),
			func(g *group) { g.members[1].disk.Definition = "" }), wait},
		"the definition is missing": {with(disksOf("a", "b"),
			func(g *group) { g.noDefinition = &definitionError{text: "it is gone"} }), wait},
		"one was canceled before":          {disksOf("a", "b").ends(velerov2.PhaseCanceled, 1), wait},
		"one is not served any more":       {with(disksOf("a", "b"), func(g *group) { g.members[1].served = false }), wait},
		"one is being deleted":             {with(disksOf("a", "b"), func(g *group) { g.members[1].upload.DeletionTimestamp = deleted }), wait},
		"one has seen a backup of before":  {with(disksOf("a", "b"), func(g *group) { g.members[1].backup = "b0" }), tellEnd},
		"somebody else's backup":           {with(disksOf("a").serving(), func(g *group) { g.backup.Annotations = nil }), wait},
		"one of clients":                   {with(disksOf("a").serving(), func(g *group) { g.backup.Spec.PulledBy = "" }), wait},
		"a group of the same name":         {with(disksOf("a").serving(), func(g *group) { g.namespace = "velero" }), wait},
		"it is being planned":              {with(disksOf("a").serving(), func(g *group) { g.backup.Status.Phase = backupv1.BackupStarting }), wait},
		"it serves":                        {disksOf("a", "b").serving(), serve},
		"one is stored":                    {disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0), serve},
		"one has failed":                   {disksOf("a", "b").serving().ends(velerov2.PhaseFailed, 0), serve},
		"all are stored":                   {disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0, 1), markStored},
		"all are stored, and it says so":   {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0, 1), func(g *group) { g.backup.Annotations[layout.AnnotationStored] = "true" }), remove},
		"all say Completed, and one lies":  {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0, 1), func(g *group) { g.members[1].moved = false }), remove},
		"one is of another backup":         {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0, 1), func(g *group) { g.members[1].backup = "b0" }), remove},
		"one is stored, and one failed":    {disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0).ends(velerov2.PhaseFailed, 1), remove},
		"stored, and deleted again":        {with(disksOf("a").serving().ends(velerov2.PhaseCompleted, 0), func(g *group) { g.members[0].upload.DeletionTimestamp = deleted }), remove},
		"all are canceled":                 {disksOf("a", "b").serving().ends(velerov2.PhaseCanceled, 0, 1), remove},
		"all were deleted":                 {with(disksOf("a").serving(), func(g *group) { g.members = nil }), remove},
		"one was deleted, and one reads":   {with(disksOf("a", "b").serving(), func(g *group) { g.members = g.members[:1] }), serve},
		"one was deleted, and one stored":  {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0), func(g *group) { g.members = g.members[:1] }), remove},
		"one volume is stored twice":       {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 0), func(g *group) { g.members = append(g.members, g.members[0]) }), serve},
		"one came late, and names fewer":   {with(disksOf("a", "b").serving().ends(velerov2.PhaseCompleted, 1), func(g *group) { g.members[0].disk.Disks = 1 }), serve},
		"one too many came late":           {with(disksOf("a", "b", "c").serving().ends(velerov2.PhaseCompleted, 0, 1), func(g *group) { g.claimDisks(2) }), serve},
		"one failed, and was done again":   {with(disksOf("a", "b", "a").serving().ends(velerov2.PhaseCompleted, 1, 2).ends(velerov2.PhaseFailed, 0), func(g *group) { g.claimDisks(2) }), markStored},
		"it has failed, and one reads":     {with(disksOf("a").serving(), func(g *group) { fail(g.backup) }), tellEnd},
		"it has failed, and nobody reads":  {with(disksOf("a").serving().ends(velerov2.PhaseFailed, 0), func(g *group) { fail(g.backup) }), remove},
		"it is being deleted, one reads":   {with(disksOf("a").serving(), func(g *group) { g.backup.DeletionTimestamp = deleted }), tellEnd},
		"it is being deleted, all stored":  {with(disksOf("a").serving().ends(velerov2.PhaseCompleted, 0), func(g *group) { g.backup.DeletionTimestamp = deleted }), wait},
		"it is gone, and one reads it":     {with(disksOf("a").serving(), func(g *group) { g.backup = nil }), tellEnd},
		"another one has its name":         {with(disksOf("a").serving(), func(g *group) { g.backup.Annotations, g.members[0].backup = nil, "b0" }), tellEnd},
		"it is gone, and all have read it": {with(disksOf("a").serving().ends(velerov2.PhaseCompleted, 0), func(g *group) { g.backup = nil }), wait},
	} {
		if got := decide(c.group); got.verdict != c.want {
			t.Errorf("%s: %s (%s), want %s", name, got.verdict, got.reason, c.want)
		}
	}
}

func fail(b *backupv1.VirtualMachineBackup) {
	b.Status.Conditions = []metav1.Condition{{Type: backupv1.ConditionFailed, Status: metav1.ConditionTrue, Reason: "ScratchFull", Message: "the scratch claim is full"}}
}

// Nothing tells when the settings change, so they are looked at again.
// A disk of many TiB takes days. Its backup ends a day after its movers moved something last.
func TestDecide_extendsWhileDataMoves(t *testing.T) {
	t.Parallel()
	g := disksOf("a", "b").serving()
	step := func(after time.Duration, done int64, want verdict) decision {
		t.Helper()
		g.now = g.now.Add(after)
		g.members[1].upload.Status.Progress.BytesDone = done
		d := decide(g)
		if d.verdict != want {
			t.Fatalf("%s after its birth: %+v, want %s", g.now.Sub(g.backup.CreationTimestamp.Time), d, want)
		}
		if want == extend {
			metav1.SetMetaDataAnnotation(&g.backup.ObjectMeta, layout.AnnotationMovedBytes,
				strconv.FormatInt(d.moved, 10))
			g.backup.Spec.TTL = &metav1.Duration{Duration: d.ttl}
		}
		return d
	}
	step(11*time.Hour, 5, serve)
	if d := step(time.Hour, 6, extend); d.ttl != 36*time.Hour+time.Minute {
		t.Errorf("it lasts %s", d.ttl)
	}
	step(time.Second, 7, serve)
	step(12*time.Hour, 3, extend) // the mover was started again
	step(13*time.Hour, 3, serve)  // nothing has moved since
	g.backup.Spec.TTL = &metav1.Duration{Duration: 2 * time.Hour}
	step(0, 9, serve) // somebody wants it to end
}

func TestDecide_looksAgainAtTheSettings(t *testing.T) {
	t.Parallel()
	g := disksOf("a", "b")
	g.members[0].served = false
	if got := decide(g); !got.unwatched {
		t.Errorf("%+v", got)
	}
	g.members[1].upload.Status.Phase = velerov2.PhaseFailed
	if got := decide(g); got.unwatched {
		t.Errorf("a group that has ended is looked at for ever: %+v", got)
	}
}

// Nothing tells when the Secret with the definition comes, so it is looked for again.
func TestDecide_looksAgainForTheDefinition(t *testing.T) {
	t.Parallel()
	g := disksOf("a", "b")
	g.noDefinition = &definitionError{text: "Secret varve/definition-1 does not exist"}
	if got := decide(g); !got.unwatched || got.reason != g.noDefinition.text {
		t.Errorf("%+v", got)
	}
}

// A group may end as a success in one way alone, whatever order its parts end in.
func TestDecide_marksNothingThatIsNotStored(t *testing.T) {
	t.Parallel()
	phases := []velerov2.Phase{velerov2.PhaseAccepted, velerov2.PhaseInProgress, velerov2.PhaseCompleted, velerov2.PhaseFailed, velerov2.PhaseCanceled}
	for _, first := range phases {
		for _, second := range phases {
			for _, backup := range []types.UID{"", "b0", "b1"} {
				g := disksOf("a", "b").serving().ends(first, 0).ends(second, 1)
				g.members[1].backup = backup
				want := first == velerov2.PhaseCompleted && second == velerov2.PhaseCompleted && backup == "b1"
				if got := decide(g); (got.verdict == markStored) != want {
					t.Errorf("%s, %s of %q: %s", first, second, backup, got.verdict)
				}
			}
		}
	}
}

func TestNewBackup(t *testing.T) {
	t.Parallel()
	g := disksOf("a", "b")
	b := newBackup(g)
	if b.Name != "web-1" || b.Namespace != "shop" || b.Annotations[datamove.AnnotationGroup] != "varve/web-1" {
		t.Errorf("%+v", b.ObjectMeta)
	}
	want := backupv1.VirtualMachineBackupSpec{BackupTracker: "daily", Mode: backupv1.PullMode, PulledBy: backupv1.PulledByDataUploads, PVCName: "scratch", TTL: &metav1.Duration{Duration: lifetime}}
	if diff := cmp.Diff(want, b.Spec); diff != "" {
		t.Error(diff)
	}
	for i := range g.members {
		g.members[i].disk.Tracker, g.members[i].disk.SkipQuiesce = "", true
	}
	if b := newBackup(g); !b.Spec.SkipQuiesce || b.Spec.MachineName() != "web" || b.Spec.TrackerName() != "" {
		t.Errorf("%+v", b.Spec)
	}
}
