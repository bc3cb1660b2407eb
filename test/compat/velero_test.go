package compat

import (
	"testing"

	upstreamv1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	upstreamv2 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// Velero is the other side of these kinds, and either side updates what the other wrote: a field that one of them does not
// know is lost with the next update. So both directions must keep everything.
func TestVeleroTypesAreUpstreams(t *testing.T) {
	t.Parallel()
	t.Run("DataUpload", bothWays[velerov2.DataUpload, upstreamv2.DataUpload])
	t.Run("DataDownload", bothWays[velerov2.DataDownload, upstreamv2.DataDownload])
	t.Run("BackupRepository", bothWays[velerov1.BackupRepository, upstreamv1.BackupRepository])
	t.Run("BackupStorageLocation", bothWays[velerov1.BackupStorageLocation, upstreamv1.BackupStorageLocation])
	t.Run("DeleteBackupRequest", bothWays[velerov1.DeleteBackupRequest, upstreamv1.DeleteBackupRequest])
}

// bothWays round-trips a full object of ours through upstream's type, and one of upstream's through ours.
func bothWays[Ours, Theirs any, O objectOf[Ours], T objectOf[Theirs]](t *testing.T) {
	t.Helper()
	t.Parallel()
	ours, theirs := O(full[Ours](t)), T(full[Theirs](t))
	for _, object := range []metav1.Object{ours, theirs} {
		object.SetNamespace("ns")
		object.SetName("name")
		object.SetLabels(map[string]string{"a": "b"})
	}
	roundTrip(t, (*Ours)(ours), new(Theirs))
	roundTrip(t, (*Theirs)(theirs), new(Ours))
}

// objectOf is a pointer to an API type.
type objectOf[Type any] interface {
	*Type
	metav1.Object
}

// What upstream sends when it leaves fields out differs from what Varve sends: null and "" must decode as absent.
func TestVeleroObjects_decodeWithNullAndEmptyFields(t *testing.T) {
	t.Parallel()
	const upload = `{"metadata":{"name":"b1-jg9wz","creationTimestamp":null},"spec":{"snapshotType":"CSI","csiSnapshot":null,"sourcePVC":"data",
		"datamover":"","backupStorageLocation":"default","sourceNamespace":"app","dataMoverConfig":null,"operationTimeout":"10m0s"},
		"status":{"dataMoverResult":null,"startTimestamp":null,"completionTimestamp":null,"acceptedTimestamp":null,"progress":{}}}`
	theirs, ours := &upstreamv2.DataUpload{}, &velerov2.DataUpload{}
	decodeStrictly(t, []byte(upload), theirs)
	decodeStrictly(t, []byte(upload), ours)
	if ours.Spec.CSISnapshot != nil || ours.Status.Phase != "" || ours.Status.Phase.Ended() || ours.Spec.OperationTimeout.Duration != theirs.Spec.OperationTimeout.Duration {
		t.Errorf("decoded as %+v", ours)
	}
}

// Constants are sent as strings.
func TestVeleroConstantsAreUpstreams(t *testing.T) {
	t.Parallel()
	pairs := [][2]string{
		{velerov1.GroupVersion.String(), upstreamv1.SchemeGroupVersion.String()},
		{velerov2.GroupVersion.String(), upstreamv2.SchemeGroupVersion.String()},

		{velerov2.SnapshotCSI, string(upstreamv2.SnapshotTypeCSI)},
		{string(velerov2.NodeAuto), string(upstreamv2.NodeOSAuto)},
		{string(velerov2.NodeLinux), string(upstreamv2.NodeOSLinux)},
		{string(velerov2.NodeWindows), string(upstreamv2.NodeOSWindows)},

		{string(velerov1.RepositoryNew), string(upstreamv1.BackupRepositoryPhaseNew)},
		{string(velerov1.RepositoryReady), string(upstreamv1.BackupRepositoryPhaseReady)},
		{string(velerov1.RepositoryNotReady), string(upstreamv1.BackupRepositoryPhaseNotReady)},
		{velerov1.RepositoryKopia, upstreamv1.BackupRepositoryTypeKopia},
		{string(velerov1.MaintenanceSucceeded), string(upstreamv1.BackupRepositoryMaintenanceSucceeded)},
		{string(velerov1.MaintenanceFailed), string(upstreamv1.BackupRepositoryMaintenanceFailed)},

		{string(velerov1.LocationAvailable), string(upstreamv1.BackupStorageLocationPhaseAvailable)},
		{string(velerov1.LocationUnavailable), string(upstreamv1.BackupStorageLocationPhaseUnavailable)},
		{string(velerov1.AccessReadOnly), string(upstreamv1.BackupStorageLocationAccessModeReadOnly)},
		{string(velerov1.AccessReadWrite), string(upstreamv1.BackupStorageLocationAccessModeReadWrite)},

		{string(velerov1.DeletionNew), string(upstreamv1.DeleteBackupRequestPhaseNew)},
		{string(velerov1.DeletionInProgress), string(upstreamv1.DeleteBackupRequestPhaseInProgress)},
		{string(velerov1.DeletionProcessed), string(upstreamv1.DeleteBackupRequestPhaseProcessed)},
	}
	// Both kinds have the same phases upstream, and one type of them here.
	for _, phase := range []struct {
		ours     velerov2.Phase
		upload   upstreamv2.DataUploadPhase
		download upstreamv2.DataDownloadPhase
	}{
		{velerov2.PhaseNew, upstreamv2.DataUploadPhaseNew, upstreamv2.DataDownloadPhaseNew},
		{velerov2.PhaseAccepted, upstreamv2.DataUploadPhaseAccepted, upstreamv2.DataDownloadPhaseAccepted},
		{velerov2.PhasePrepared, upstreamv2.DataUploadPhasePrepared, upstreamv2.DataDownloadPhasePrepared},
		{velerov2.PhaseInProgress, upstreamv2.DataUploadPhaseInProgress, upstreamv2.DataDownloadPhaseInProgress},
		{velerov2.PhaseCanceling, upstreamv2.DataUploadPhaseCanceling, upstreamv2.DataDownloadPhaseCanceling},
		{velerov2.PhaseCanceled, upstreamv2.DataUploadPhaseCanceled, upstreamv2.DataDownloadPhaseCanceled},
		{velerov2.PhaseCompleted, upstreamv2.DataUploadPhaseCompleted, upstreamv2.DataDownloadPhaseCompleted},
		{velerov2.PhaseFailed, upstreamv2.DataUploadPhaseFailed, upstreamv2.DataDownloadPhaseFailed},
	} {
		pairs = append(pairs, [2]string{string(phase.ours), string(phase.upload)}, [2]string{string(phase.ours), string(phase.download)})
	}
	for _, p := range pairs {
		if p[0] != p[1] {
			t.Errorf("%q is %q upstream", p[0], p[1])
		}
	}
}
