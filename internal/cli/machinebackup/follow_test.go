package machinebackup

import (
	"strings"
	"testing"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// The backup of a machine that nobody tracks says so, how consistent it is, and how to have the machine tracked.
func TestDescribeStored_ofAnUntrackedMachine(t *testing.T) {
	t.Parallel()
	b := &harvesterv1.VirtualMachineBackup{}
	b.Name = "monday"
	b.Status.VolumeBackups = []harvesterv1.VolumeBackup{{VolumeName: "root", FullReason: "NotTracked"}}
	b.Status.SourceIndications = []harvesterv1.SourceIndication{{Indication: "GuestAgent", Message: "frozen"}}
	if got := DescribeStored(b); strings.Contains(got, "GuestAgent") || DescribeUntracked(b) != "" {
		t.Errorf("of another machine: %q", got)
	}
	b.Status.Untracked = &harvesterv1.UntrackedMachine{Message: "the changes of virtual machine web are not tracked"}
	const want = ", volume root full because NotTracked, GuestAgent (frozen); " +
		"the changes of virtual machine web are not tracked"
	if got := DescribeStored(b); !strings.HasSuffix(got, want) {
		t.Errorf("%q", got)
	}
}
