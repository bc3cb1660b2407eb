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
