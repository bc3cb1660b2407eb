package image

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// newMachineBackup returns a backup that is complete, of a machine with volumes, each with the snapshot ID.
func newMachineBackup(name, id string, volumes ...string) *harvesterv1.VirtualMachineBackup {
	b := &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name}}
	b.Status.ReadyToUse = ptr.To(true)
	b.Status.Location = &harvesterv1.LocationReference{Namespace: "varve", Name: "s3"}
	for _, v := range volumes {
		b.Status.VolumeBackups = append(b.Status.VolumeBackups, harvesterv1.VolumeBackup{VolumeName: v, SnapshotID: id + v})
	}
	return b
}

func TestRequest_findPoint(t *testing.T) {
	t.Parallel()
	unfinished := newMachineBackup("unfinished", snapshotID, "")
	unfinished.Status.ReadyToUse = nil
	elsewhere := newMachineBackup("elsewhere", snapshotID, "")
	elsewhere.Status.Location.Namespace = "velero"
	snapshot := newMachineBackup("snapshot", "", "root")
	snapshot.Spec.Type = harvesterv1.Snapshot
	client := newClient(t, interceptor.Funcs{}, newMachineBackup("one", snapshotID, "root"),
		newMachineBackup("two", snapshotID, "root", "data"), newMachineBackup("none", ""),
		newMachineBackup("files", filesID, "root"), unfinished, elsewhere, snapshot)
	for name, c := range map[string]struct{ backup, volume, id, says string }{
		"its only disk":   {backup: "one", id: snapshotID + "root"},
		"its only name":   {backup: "one", volume: "root", id: snapshotID + "root"},
		"a name":          {backup: "two", volume: "data", id: snapshotID + "data"},
		"which one":       {backup: "two", says: "has 2 disks: name one with --volume: root, data"},
		"another name":    {backup: "two", volume: "log", says: "has no volume log: give one of root, data"},
		"no disk":         {backup: "none", says: "has no disk"},
		"files":           {backup: "files", says: "is not stored as a disk"},
		"no such backup":  {backup: "sunday", says: "get machine backup app/sunday"},
		"not complete":    {backup: "unfinished", says: "is not complete"},
		"another place":   {backup: "elsewhere", says: "in a location of namespace velero"},
		"only a snapshot": {backup: "snapshot", says: "is a snapshot in the machine's storage"},
	} {
		r := request{fromBackup: "app/" + c.backup, volume: c.volume, wishes: wishes{copies: 1}}
		b, err := r.newObject("golden")
		if err != nil {
			t.Fatal(err)
		}
		b.Namespace = "varve"
		err = r.findPoint(t.Context(), client, b)
		got, location := b.Spec.SourceParameters[longhornv1.ParameterSnapshotID],
			b.Spec.SourceParameters[longhornv1.ParameterLocation]
		switch {
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || got != ""):
			t.Errorf("%s: %q, %v", name, got, err)
		case c.says == "" && (err != nil || string(got) != c.id || location != "s3" ||
			b.Spec.SourceType != longhornv1.SourceRestore):
			t.Errorf("%s: %+v, %v", name, b.Spec, err)
		}
	}
}

func TestFormatSource_restore(t *testing.T) {
	t.Parallel()
	b := newImage()
	b.Spec.SourceType = longhornv1.SourceRestore
	b.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
		longhornv1.ParameterLocation: "s3", longhornv1.ParameterSnapshotID: snapshotID,
	}
	if got, want := formatSource(b), "snapshot ID "+snapshotID+" in location s3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
