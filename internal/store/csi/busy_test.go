package csi

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/varvebackup/varve/internal/store/diskset"
)

// A second call for a volume is told to come back, and one for another volume is not.
func TestBegin_refusesASecondCall(t *testing.T) {
	t.Parallel()
	d := New(Options{Disks: &diskset.Set{}})
	end, err := d.begin("pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.begin("pvc-1"); grpcCode(err) != codes.Aborted {
		t.Errorf("%v, want code %s", err, codes.Aborted)
	}
	if _, err := d.begin("pvc-2"); err != nil {
		t.Error(err)
	}
	end()
	if _, err := d.begin("pvc-1"); err != nil {
		t.Error(err)
	}
}
