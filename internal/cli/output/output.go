// Package output writes results in the form that -o selects: text for people in tables and pages, or objects for
// programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
)

// Values of -o. The empty one means each command's own text.
const (
	AsTable = "table"
	AsWide  = "wide"
	AsJSON  = "json"
	AsYAML  = "yaml"
	AsName  = "name"
)

// AddFlag adds -o with the forms that a command supports.
func AddFlag(c *cobra.Command, into *string, forms ...string) {
	c.Flags().VarP(cmdline.NewChoice(into, "", forms), "output", "o", "how to show the result: "+strings.Join(forms, ", "))
	cmdline.CompleteFixed(c, "output", forms...)
}

// PrintObject writes an API object, or a list, as the server has it, but without managedFields.
func PrintObject(w io.Writer, form string, object runtime.Object) error {
	scheme, err := cluster.Scheme()
	if err != nil {
		return err
	}
	if err := setKind(object, scheme); err != nil {
		return err
	}
	if form == AsName && meta.IsListType(object) {
		return meta.EachListItem(object, func(item runtime.Object) error { return PrintObject(w, form, item) })
	}
	var p printers.ResourcePrinter
	switch form {
	case AsJSON:
		p = &printers.JSONPrinter{}
	case AsYAML:
		p = &printers.YAMLPrinter{}
	default:
		p = &printers.NamePrinter{}
	}
	if err := (&printers.OmitManagedFieldsPrinter{Delegate: p}).PrintObj(object, w); err != nil {
		return fmt.Errorf("print %s: %w", form, err)
	}
	return nil
}

// PrintData writes data that is no API object. Its json tags decide the form.
func PrintData(w io.Writer, form string, data any) error {
	text, err := json.MarshalIndent(data, "", "    ")
	if err == nil && form == AsYAML {
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

// PrintDone writes "kind.group/name created", as kubectl does.
func PrintDone(w io.Writer, object runtime.Object, done string) error {
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
