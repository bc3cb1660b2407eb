package data

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

const gib = 1 << 30

func seen(uid types.UID, phase velerov2.Phase, started time.Time, done, total int64) *movement {
	return newMovement(&velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid)},
		Status: velerov2.DataUploadStatus{
			Phase: phase, StartTimestamp: &metav1.Time{Time: started}, Progress: velerov2.Progress{BytesDone: done, TotalBytes: total},
		},
	})
}

// Of a volume of 100 GiB, 90 are known to be zero and done in the first second. The rest takes what its own rate says.
func TestRates_leaveOutWhatIsKnownToBeZero(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	r := &rates{}
	for _, row := range []struct {
		after       time.Duration
		done, total int64
		rate, left  string
	}{
		{0, 0, 0, "", ""},
		{time.Second, 90 * gib, 100 * gib, "", ""},
		{11 * time.Second, 91 * gib, 100 * gib, "102.4 MiB/s", "91s"},
		{21 * time.Second, 92 * gib, 100 * gib, "102.4 MiB/s", "81s"},
	} {
		rate, left := r.measure(start.Add(row.after), seen("u", velerov2.PhaseInProgress, start, row.done, row.total))
		if rate != row.rate || left != row.left {
			t.Errorf("after %s: %q, %q, want %q, %q", row.after, rate, left, row.rate, row.left)
		}
	}
}

func TestRates_areOfEachObject(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	r := &rates{}
	r.measure(start, seen("a", velerov2.PhaseInProgress, start, 0, 100*gib))
	r.measure(start, seen("b", velerov2.PhaseInProgress, start, 50*gib, 100*gib))
	now := start.Add(10 * time.Second)
	if rate, left := r.measure(now, seen("a", velerov2.PhaseInProgress, start, 10*gib, 100*gib)); rate != "1 GiB/s" || left != "90s" {
		t.Errorf("a: %q, %q", rate, left)
	}
	if rate, left := r.measure(now, seen("b", velerov2.PhaseInProgress, start, 50*gib, 100*gib)); rate != "" || left != "" {
		t.Errorf("b stands still: %q, %q", rate, left)
	}
	if rate, left := r.measure(now, seen("a", velerov2.PhaseCompleted, start, 100*gib, 100*gib)); rate != "" || left != "" {
		t.Errorf("a is complete: %q, %q", rate, left)
	}
	if rate, _ := r.measure(now.Add(10*time.Second), seen("a", velerov2.PhaseInProgress, start, 100*gib, 100*gib)); rate != "" {
		t.Errorf("what has ended is not forgotten: %q", rate)
	}
}
