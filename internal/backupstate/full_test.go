package backupstate

import (
	"strings"
	"testing"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

func TestWhyFull_coversTheAPI(t *testing.T) {
	t.Parallel()
	reasons := 0
	for _, c := range apiConstants(t, "backup.go") {
		if c.typ != "FullReason" {
			continue
		}
		reasons++
		if text := WhyFull(backupv1.FullReason(c.value)); !strings.HasPrefix(text, c.value+": ") {
			t.Errorf("%s: %q", c.name, text)
		}
	}
	if reasons != len(fullReasons) {
		t.Errorf("the API has %d reasons, the table %d", reasons, len(fullReasons))
	}
	if text := WhyFull("Future"); text != "Future" {
		t.Error(text)
	}
}
