package data

import (
	"testing"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

func TestWhyFull_hasReasonAndWords(t *testing.T) {
	t.Parallel()
	for want, result := range map[string]map[string]string{
		"":                       {"storedBytes": "1"},
		"OtherBase":              {"fullReason": "OtherBase"},
		"NoBaseSnapshot: it was": {"fullReason": "NoBaseSnapshot", "fullDetail": "it was"},
	} {
		if got := whyFull(&velerov2.DataUpload{Status: velerov2.DataUploadStatus{DataMoverResult: result}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
