// Package output writes results in the form that -o selects: text for people in tables and pages, or objects for
// programs.
package output

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

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

// AddFlag adds -o with the forms that a command supports. A command that supports json also supports templates.
func AddFlag(c *cobra.Command, into *string, forms ...string) {
	AddFlagAs(c, "output", into, forms...)
}

// AddFlagAs is AddFlag for a command in which --output means something else: name is the long name of -o.
func AddFlagAs(c *cobra.Command, name string, into *string, forms ...string) {
	v := &formValue{Choice: cmdline.NewChoice(into, "", forms), into: into}
	shown := slices.Clone(forms)
	if slices.Contains(forms, AsJSON) {
		v.templates = true
		shown = append(shown, jsonPathPrefix+"TEMPLATE", customColumnsPrefix+"HEADER:PATH,...")
	}
	c.Flags().VarP(v, name, "o", "how to show the result: "+strings.Join(shown, ", "))
	cmdline.RegisterCompletion(c, name, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		if !v.templates {
			return forms, cobra.ShellCompDirectiveNoFileComp
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if !slices.ContainsFunc(forms, func(f string) bool { return strings.HasPrefix(f, typed) }) {
			directive |= cobra.ShellCompDirectiveNoSpace // a template follows
		}
		return append(slices.Clone(forms), jsonPathPrefix, customColumnsPrefix), directive
	})
}

// formValue is the value of -o: one of a few words, or a template.
type formValue struct {
	*cmdline.Choice

	into      *string
	templates bool
}

// Set refuses an unknown word and a template that cannot be parsed.
func (v *formValue) Set(text string) error {
	if !v.templates {
		return v.Choice.Set(text)
	}
	for _, prefix := range []string{jsonPathPrefix, customColumnsPrefix} {
		if text == strings.TrimSuffix(prefix, "=") {
			text = prefix
		}
	}
	if !isTemplate(text) {
		if err := v.Choice.Set(text); err != nil {
			return fmt.Errorf("%w, %s, %s", err, jsonPathPrefix+"TEMPLATE", customColumnsPrefix+"HEADER:PATH,...")
		}
		return nil
	}
	if err := validateTemplate(text); err != nil {
		return err
	}
	*v.into = text
	return nil
}

// IsForPrograms reports whether a form shows objects. The other forms are a command's own text.
func IsForPrograms(form string) bool { return form != "" && form != AsTable && form != AsWide }

// PrintObject writes an API object, or a list, as the server has it, but without managedFields.
func PrintObject(w io.Writer, form string, object runtime.Object) error {
	return (&Printer{Out: w, Form: form}).PrintObject(object)
}

// PrintData writes data that is no API object. Its json tags decide the form.
func PrintData(w io.Writer, form string, data any) error {
	return (&Printer{Out: w, Form: form}).PrintData(data)
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
