package drive

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/datamove"
)

func TestResultOf_saysWhyEverythingWasRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		report datamove.Report
		want   map[string]string
	}{
		{datamove.Report{StoredBytes: 7}, map[string]string{"storedBytes": "7"}},
		{
			datamove.Report{Repository: "r", FullReason: datamove.FullNoBaseSnapshot, FullDetail: "the words"},
			map[string]string{"storedBytes": "0", "repository": "r", "fullReason": "NoBaseSnapshot", "fullDetail": "the words"},
		},
	} {
		if diff := cmp.Diff(c.want, resultOf(&c.report)); diff != "" {
			t.Error(diff)
		}
	}
}
