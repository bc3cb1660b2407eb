package kubevirtbackup

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// The API server's clock is ahead of the controller's. A backup whose creation is in the controller's future still
// owns its lock.
func TestLock_isOwnedWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	for _, tracked := range []bool{true, false} {
		w := newWorld()
		w.track()
		b := w.create("b", tracked)
		b.CreationTimestamp = metav1.NewTime(w.now.Add(time.Hour))
		locks := 0
		for range 40 {
			if w.step(b).Step == stepLock {
				locks++
			}
			w.mount()
			w.now = w.now.Add(time.Second / 4)
		}
		if locks != 1 || b.Status.Phase != backupv1.BackupStarting {
			t.Errorf("tracker %v: %d locks in 40 rounds, and it is %s: %s", tracked, locks, b.Status.Phase, b.Status.Message)
		}
	}
}

// A backup does not inherit the lock of an earlier backup of the same name that lost its finalizer.
func TestLock_ofAnEarlierBackupOfTheNameIsAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld()
	b := w.create("b", false)
	w.instance.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{
		BackupName: "b", BackupMsg: ptr.To(layout.BackupLock("earlier")), StartTimestamp: &metav1.Time{Time: w.now.Add(time.Hour)},
	}
	if w.input(b).ownsLock() {
		t.Error("the backup owns the lock of another")
	}
	if found := findAbandoned(w.instance, b, nil); !found.lock {
		t.Error("nobody releases the lock")
	}
}
