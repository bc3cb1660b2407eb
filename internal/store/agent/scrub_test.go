package agent

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clocktesting "k8s.io/utils/clock/testing"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/scrub"
)

// Volumes are not said to be intact if more of them had wrong blocks than could be noted.
func TestDescribeScrub_omitted(t *testing.T) {
	t.Parallel()
	a := &agent{Options: Options{Clock: clocktesting.NewFakeClock(time.Now())}}
	for _, omitted := range []bool{false, true} {
		var status longhornv1.DiskStatus
		a.describeScrub(&status, &scrub.Status{Omitted: omitted})
		intact := meta.IsStatusConditionTrue(status.Conditions, longhornv1.ConditionVolumesIntact)
		c := meta.FindStatusCondition(status.Conditions, longhornv1.ConditionVolumesIntact)
		if intact == omitted || strings.Contains(c.Message, "more volumes than can be listed") != omitted {
			t.Errorf("omitted %t: %+v", omitted, c)
		}
	}
}
