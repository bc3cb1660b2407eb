package csi

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/varvebackup/varve/internal/store/disk"
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

// A call that fails is counted, and one that succeeds is not.
func TestConvertErrors_counts(t *testing.T) {
	t.Parallel()
	failed := 0
	d := New(Options{Disks: &diskset.Set{}, Failed: func() { failed++ }})
	for _, err := range []error{nil, errBusy, nil} {
		next := func(context.Context, any) (any, error) { return nil, err }
		if _, got := d.convertErrors(t.Context(), nil, &grpc.UnaryServerInfo{}, next); (got == nil) != (err == nil) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if failed != 1 {
		t.Errorf("%d calls count as failed", failed)
	}
	d.attached = map[string]disk.Lease{"pvc-1": nil, "pvc-2": nil, "source-1": nil}
	if n := d.CountAttached(); n != 2 {
		t.Errorf("%d volumes are attached", n)
	}
}
