package output

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Columns are aligned as a terminal shows them, whatever the cells contain.
func TestTableIsAligned(t *testing.T) {
	t.Parallel()
	table := &Table{Header: []string{"NAME", "SIZE", "TYPE"}}
	table.Add("web", "1 GiB", "Full")
	table.Add("日本", "", "a\x1b[2Jb\nc")
	var out strings.Builder
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	const want = "NAME   SIZE    TYPE\n" +
		"web    1 GiB   Full\n" +
		"日本   -       a [2Jb c\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// What comes later is aligned with what came before, below the same header.
func TestPrinter_continuesATable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := &Printer{Out: &out, Form: "custom-columns=NAME:.metadata.name,KIND:.kind"}
	list := backups()
	list.Items[0].Name = "longer"
	for i := range list.Items {
		if err := p.PrintObject(&list.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	const want = "NAME     KIND\n" +
		"longer   VirtualMachineBackup\n" +
		"b        VirtualMachineBackup\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	p = &Printer{Out: &out, Form: AsYAML}
	for i := range list.Items {
		if err := p.PrintObject(&list.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	if documents := strings.Split(out.String(), "---\n"); len(documents) != 2 || !strings.Contains(documents[1], "name: b") {
		t.Errorf("YAML is not one document for each object:\n%s", out.String())
	}
}
