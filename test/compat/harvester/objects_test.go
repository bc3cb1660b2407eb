package harvester_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	upstream "github.com/harvester/harvester/pkg/apis/harvesterhci.io/v1beta1"
)

// foreign are the fields that Harvester 1.8 does not know: those of 1.9, and what Varve keeps of a machine without
// knowing it.
var foreign = [][]string{
	{"spec", "haltAfterRestore"}, {"spec", "fsFreezeDeadline"}, {"status", "source", "spec", "unknown"},
}

// TestObjects_areHarvesters reads the objects that api/harvester's own test has, strictly, with Harvester's types, and
// writes the same. Varve's types do that with them there: so each can read what the other one writes.
func TestObjects_areHarvesters(t *testing.T) {
	t.Parallel()
	for file, o := range map[string]any{
		"backup.json":   &upstream.VirtualMachineBackup{},
		"snapshot.json": &upstream.VirtualMachineBackup{},
		"restore.json":  &upstream.VirtualMachineRestore{},
		"schedule.json": &upstream.ScheduleVMBackup{},
	} {
		want := readObject(t, "../../../api/harvester/v1beta1/testdata/"+file)
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		strict := json.NewDecoder(bytes.NewReader(text))
		strict.DisallowUnknownFields()
		if err := strict.Decode(o); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		dropEmpty(got)
		dropEmpty(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: what is read, and what Harvester's types write: %s", file, diff)
		}
	}
}

// readObject returns an object without the fields of foreign.
func readObject(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	for _, path := range foreign {
		fields := object
		for _, key := range path[:len(path)-1] {
			fields, _ = fields[key].(map[string]any)
		}
		delete(fields, path[len(path)-1])
	}
	return object
}

// dropEmpty removes what Go writes for a field that is not set and has no omitempty.
func dropEmpty(fields map[string]any) {
	for key, value := range fields {
		if isEmpty(value) {
			delete(fields, key)
		}
	}
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case float64:
		return v == 0
	case []any:
		for i := range v {
			isEmpty(v[i])
		}
		return len(v) == 0
	case map[string]any:
		dropEmpty(v)
		return len(v) == 0
	}
	return false
}
