package v1beta1_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/test/verdict"
)

// TestObjects_areHarvesters reads objects as Harvester 1.8 writes them, with every field of its that is served here,
// and writes the same. Of Harvester's fields these are not served: longhornBackupName and longhornEngineName.
func TestObjects_areHarvesters(t *testing.T) {
	t.Parallel()
	for file, o := range map[string]runtime.Object{
		"backup.json": &harvesterv1.VirtualMachineBackup{}, "snapshot.json": &harvesterv1.VirtualMachineBackup{},
		"restore.json": &harvesterv1.VirtualMachineRestore{}, "schedule.json": &harvesterv1.ScheduleVMBackup{},
	} {
		want, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		strict := json.NewDecoder(bytes.NewReader(want))
		strict.DisallowUnknownFields()
		if err := strict.Decode(o); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var got, expected any
		if err := errors.Join(json.Unmarshal(text, &got), json.Unmarshal(want, &expected)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf(verdict.GoldenMark+"%s: %s", file, diff)
		}
	}
}
