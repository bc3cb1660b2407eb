package harvesterbackup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/test/gen"
)

// A backup does not wait for ever for a guest that starts.
func TestPlan_waitsUntilADeadline(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	in := &input{
		backup: &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
			Namespace:         "app",
			CreationTimestamp: metav1.NewTime(created),
		}},
		machine:  definition.NewMachine(),
		instance: &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseScheduling}},
	}
	in.backup.Spec.Source.Name = "web"
	in.now = created.Add(59 * time.Minute)
	if p := makePlan(in); p.waiting != "virtual machine app/web to run: its instance is Scheduling, until 2026-11-29T09:00:00Z" || p.refused != "" {
		t.Errorf("%+v", p)
	}
	in.now = created.Add(time.Hour)
	if p := makePlan(in); p.waiting != "" || !strings.HasPrefix(p.refused,
		"waited 1h0m0s for virtual machine app/web to run") {
		t.Errorf("%+v", p)
	}
}

// A scheduled backup waits for its storage no longer than until the next one is due.
func TestStoragePatience(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for startBy, want := range map[string]time.Duration{
		"": 0, "2026-11-29T08:00:55Z": 2 * time.Minute, "2026-11-29T08:59:55Z": 59*time.Minute + 55*time.Second,
		"2026-11-30T07:59:55Z": 4 * time.Hour,
	} {
		b := &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: metav1.NewTime(created),
			Annotations:       map[string]string{harvesterv1.AnnotationStartBy: startBy},
		}}
		if got := storagePatience(b); got != want {
			t.Errorf("a backup that has to begin until %q waits %s, want %s", startBy, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long.name-", 20)[:200]
	for _, name := range []string{"monday", "mon.day", long} {
		group := groupName(name, "u1")
		if why := validation.IsDNS1123Label(group); len(why) > 0 {
			t.Errorf("group %s: %v", group, why)
		}
		if groupName(name, "u2") == group {
			t.Errorf("two backups called %s have the group %s", name, group)
		}
	}
	at := harvesterv1.LocationReference{Namespace: "varve", Name: long}
	tracker := trackerName("m1", at)
	if why := validation.IsDNS1123Subdomain(tracker); len(why) > 0 || len(tracker) > 200 {
		t.Errorf("tracker %s: %v", tracker, why)
	}
	for _, other := range []string{trackerName("m2", at), trackerName("m1", harvesterv1.LocationReference{Namespace: "varve", Name: long + "x"})} {
		if other == tracker {
			t.Errorf("two trackers are called %s", tracker)
		}
	}
}

// Disks that are left out count: the hypervisor keeps what the guest overwrites on them, too.
func TestScratchBytes_countsEveryTrackedDisk(t *testing.T) {
	t.Parallel()
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		disks []int64
		want  int64
	}{"small": {[]int64{gib}, gib}, "small and large": {
		[]int64{gib, 19 * gib},
		10 * gib,
	}, "huge": {[]int64{2000 * gib}, 200 * gib}} {
		in := &input{
			backup: &harvesterv1.VirtualMachineBackup{}, instance: &kubevirtv1.VirtualMachineInstance{},
			claims: map[string]*corev1.PersistentVolumeClaim{},
		}
		for i, bytes := range c.disks {
			claim := fmt.Sprint("disk", i)
			gen.Disk(claim, claim)(&in.instance.Spec)
			in.claims[claim] = gen.Claim(gen.Meta("app", claim), gen.SetSize(fmt.Sprint(bytes)))
		}
		if got, err := in.scratchBytes(); err != nil || got < c.want || got > c.want+100<<20 {
			t.Errorf("%s: %d, want about %d; %v", name, got, c.want, err)
		}
		in.backup.Annotations = map[string]string{harvesterv1.AnnotationScratchSize: "300Gi"}
		if got, err := in.scratchBytes(); err != nil || got != 300*gib {
			t.Errorf("%s, with the annotation: %d; %v", name, got, err)
		}
		for _, text := range []string{"", "much", "-1Gi", "0"} {
			in.backup.Annotations[harvesterv1.AnnotationScratchSize] = text
			if got, err := in.scratchBytes(); err == nil {
				t.Errorf("%q is %d", text, got)
			}
		}
	}
}

func TestScratchClass(t *testing.T) {
	t.Parallel()
	disk := func(class, provisioner string, mode corev1.PersistentVolumeMode) harvesterv1.VolumeBackup {
		v := harvesterv1.VolumeBackup{CSIDriverName: provisioner}
		v.PersistentVolumeClaim.Spec = corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeMode: &mode}
		return v
	}
	for name, c := range map[string]struct {
		annotation string
		disks      []harvesterv1.VolumeBackup
		want       string
	}{
		"that of a file": {"", []harvesterv1.VolumeBackup{
			disk("block", "csi", corev1.PersistentVolumeBlock),
			disk("files", "csi", corev1.PersistentVolumeFilesystem),
		}, "files"},
		"the default one": {"", []harvesterv1.VolumeBackup{disk("static", staticProvisioner,
			corev1.PersistentVolumeFilesystem), disk("", "", corev1.PersistentVolumeFilesystem)}, "default"},
		"the annotation's": {"fast", []harvesterv1.VolumeBackup{disk("files", "csi",
			corev1.PersistentVolumeFilesystem)}, "fast"},
		"of a machine of block": {
			"",
			[]harvesterv1.VolumeBackup{disk("block", "csi", corev1.PersistentVolumeBlock)},
			"default",
		},
	} {
		b := &harvesterv1.VirtualMachineBackup{Status: harvesterv1.VirtualMachineBackupStatus{VolumeBackups: c.disks}}
		b.Annotations = map[string]string{harvesterv1.AnnotationScratchClass: c.annotation}
		if got := ptr.Deref(scratchClass(b), "default"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A disk that the machine got while the backup waited is in the moment that the hypervisor has taken, and nobody stores
// it.
func TestDifference(t *testing.T) {
	t.Parallel()
	s := &harvesterv1.VirtualMachineBackupStatus{
		VolumeBackups: []harvesterv1.VolumeBackup{{VolumeName: "root"}},
		ExcludedVolumes: []harvesterv1.ExcludedVolume{
			{Name: "swap", Reason: harvesterv1.ExcludedByUser},
			{Name: "data", Reason: harvesterv1.NotRunningYet},
			{Name: "shared", Reason: harvesterv1.Shareable}, // KubeVirt backs it up, too
		},
	}
	if why := describeDifference(s, []backupv1.IncludedVolume{{VolumeName: "root"}, {VolumeName: "shared"}}); why != "" {
		t.Errorf("as KubeVirt 1.8 has it: %s", why)
	}
	if why := describeDifference(s, []backupv1.IncludedVolume{{Name: "root"}, {Name: "swap"}}); why != "" {
		t.Error(why)
	}
	if why := describeDifference(s, []backupv1.IncludedVolume{
		{Name: "root"},
		{Name: "data"},
	}); !strings.HasPrefix(why, "volume data was added") {
		t.Errorf("%q", why)
	}
}

// A DataUpload that was deleted after it had stored its disk takes nothing back.
func TestObserve_whatIsStoredStaysStored(t *testing.T) {
	t.Parallel()
	s := &harvesterv1.VirtualMachineBackupStatus{
		SourceUID: ptr.To(types.UID("m")),
		VolumeBackups: []harvesterv1.VolumeBackup{{
			VolumeName: "root", VolumeSize: 10, ReadyToUse: ptr.To(true),
			Progress: 100,
		}},
	}
	if o := observeUploads(s, time.Now(), nil); !o.stored || o.failed != "" {
		t.Errorf("%+v", o)
	}
}
