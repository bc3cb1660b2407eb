package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
)

// Printer writes one result after another in one form.
type Printer struct {
	Out io.Writer
	// Form is a value of -o.
	Form string
	// NoHeaders leaves out the names of a table's columns.
	NoHeaders bool

	// widths are the columns of the tables so far: what comes later is aligned with them.
	widths []int
	// printed is how many objects were printed.
	printed int
}

// PrintObject writes an API object, or a list, as the server has it, but without managedFields.
func (p *Printer) PrintObject(object runtime.Object) error {
	scheme, err := cluster.Scheme()
	if err != nil {
		return err
	}
	if err := setKind(object, scheme); err != nil {
		return err
	}
	if p.Form == AsName && meta.IsListType(object) {
		return meta.EachListItem(object, func(item runtime.Object) error { return p.PrintObject(item) })
	}
	var printer printers.ResourcePrinter
	switch p.Form {
	case AsJSON:
		printer = &printers.JSONPrinter{}
	case AsYAML:
		printer = &printers.YAMLPrinter{}
	default:
		printer = &printers.NamePrinter{}
	}
	if p.Form == AsYAML && p.printed > 0 {
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
	}
	p.printed++
	if isTemplate(p.Form) {
		printer = printers.ResourcePrinterFunc(func(object runtime.Object, _ io.Writer) error { return p.printTemplate(object) })
	}
	var told *failure.Error
	err = (&printers.OmitManagedFieldsPrinter{Delegate: printer}).PrintObj(object, p.Out)
	if err == nil || errors.As(err, &told) {
		return err
	}
	return fmt.Errorf("print %s: %w", p.Form, err)
}

// PrintData writes data that is no API object. Its json tags decide the form.
func (p *Printer) PrintData(data any) error {
	if isTemplate(p.Form) {
		return p.printTemplate(data)
	}
	text, err := json.MarshalIndent(data, "", "    ")
	if err == nil && p.Form == AsYAML {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("print %s: %w", p.Form, err)
	}
	_, err = p.Out.Write(text)
	return err
}

// PrintTable writes a table. One after the first has no header, and its columns begin where they began before.
func (p *Printer) PrintTable(t *Table) error {
	t = t.WithoutHeader(p.NoHeaders || p.widths != nil)
	if p.widths == nil {
		p.widths = make([]int, 0, len(t.Header))
	}
	return t.writeAligned(p.Out, &p.widths)
}
