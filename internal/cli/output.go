package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
)

// Values of -o. The empty one means each command's own text.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
)

// outputFlag adds -o with the forms that a command supports.
func outputFlag(c *cobra.Command, into *string, forms ...string) {
	c.Flags().VarP(newChoice(into, "", forms), "output", "o", "how to show the result: "+strings.Join(forms, ", "))
	completeFixed(c, "output", forms...)
}

// printObject writes an API object, or a list, as the server has it, but without managedFields.
func printObject(w io.Writer, form string, object runtime.Object) error {
	scheme, err := cluster.Scheme()
	if err != nil {
		return err
	}
	if err := setKind(object, scheme); err != nil {
		return err
	}
	if form == asName && meta.IsListType(object) {
		return meta.EachListItem(object, func(item runtime.Object) error { return printObject(w, form, item) })
	}
	var p printers.ResourcePrinter
	switch form {
	case asJSON:
		p = &printers.JSONPrinter{}
	case asYAML:
		p = &printers.YAMLPrinter{}
	default:
		p = &printers.NamePrinter{}
	}
	if err := (&printers.OmitManagedFieldsPrinter{Delegate: p}).PrintObj(object, w); err != nil {
		return fmt.Errorf("print %s: %w", form, err)
	}
	return nil
}

// printData writes data that is no API object. Its json tags decide the form.
func printData(w io.Writer, form string, data any) error {
	text, err := json.MarshalIndent(data, "", "    ")
	if err == nil && form == asYAML {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("print %s: %w", form, err)
	}
	_, err = w.Write(text)
	return err
}

// printDone writes "kind.group/name created", as kubectl does.
func printDone(w io.Writer, object runtime.Object, done string) error {
	scheme, err := cluster.Scheme()
	if err != nil {
		return err
	}
	if err := setKind(object, scheme); err != nil {
		return err
	}
	return (&printers.NamePrinter{Operation: done}).PrintObj(object, w)
}

// setKind sets apiVersion and kind, which typed objects lose when they are decoded.
func setKind(object runtime.Object, scheme *runtime.Scheme) error {
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return fmt.Errorf("kind of %T: %w", object, err)
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	if !meta.IsListType(object) {
		return nil
	}
	return meta.EachListItem(object, func(item runtime.Object) error { return setKind(item, scheme) })
}

// table is rows below a header, if it has one. It is aligned by terminal columns: a character may take two.
type table struct {
	header []string
	rows   [][]string
	// gap is the minimum number of columns between cells; 0 means 3.
	gap int
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = human.Or(human.Line(cell))
	}
	t.rows = append(t.rows, cells)
}

// noHeadersFlag adds --no-headers.
func noHeadersFlag(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "no-headers", false, "show a table without the line with the names of its columns")
}

// withoutHeader removes the header if leave says so, and returns the table.
func (t *table) withoutHeader(leave bool) *table {
	if leave {
		t.header = nil
	}
	return t
}

func (t *table) write(w io.Writer) error {
	rows := t.rows
	if t.header != nil {
		rows = append([][]string{t.header}, rows...)
	}
	gap := t.gap
	if gap == 0 {
		gap = 3
	}
	widths := make([]int, 0, 16)
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(cell))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			text.WriteString(cell)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", widths[i]+gap-runewidth.StringWidth(cell)))
			}
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}
