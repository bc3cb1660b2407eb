package resource

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
)

// Listing describes a `list` command for one kind.
type Listing struct {
	Short, Long, Example string
	// Noun is what is listed, in the plural.
	Noun    string
	NewList func() client.ObjectList
	// Sort sorts the list.
	Sort func(client.ObjectList)
	// Rows makes the table. wide asks for every column.
	Rows func(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption) (*output.Table, error)
}

// ListCommand makes a `list` command.
func (s *Session) ListCommand(l Listing) *cobra.Command {
	var form, selector string
	var all, noHeaders bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: l.Short, Long: l.Long, Example: l.Example,
		Args:              cmdline.ExactArgs(0, "no argument (select with -l, or name an object to describe)"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parsed, err := labels.Parse(selector)
			if err != nil {
				return failure.Usage("-l %s: %s", selector, err)
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			options := []client.ListOption{client.MatchingLabelsSelector{Selector: parsed}}
			where := "all namespaces"
			if !all {
				options = append(options, client.InNamespace(c.Namespace))
				where = "namespace " + c.Namespace
			}
			list := l.NewList()
			if err := c.List(cmd.Context(), list, options...); err != nil {
				return fmt.Errorf("list %s in %s: %w", l.Noun, where, err)
			}
			l.Sort(list)
			printer := &output.Printer{Out: cmd.OutOrStdout(), Form: form, NoHeaders: noHeaders}
			switch {
			case meta.LenList(list) == 0 && (output.IsCustomColumns(form) || !output.IsForPrograms(form)):
				fmt.Fprintf(cmd.ErrOrStderr(), "No %s in %s.\n", l.Noun, where)
				return nil
			case output.IsForPrograms(form):
				return printer.PrintObject(list)
			}
			t, err := l.Rows(cmd.Context(), c, list, form == output.AsWide, options)
			if err != nil {
				return err
			}
			return printer.PrintTable(withNamespaces(t, list, all))
		},
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	c.Flags().StringVarP(&selector, "selector", "l", "", "list only objects with these labels, such as app=web,tier!=test")
	output.AddNoHeadersFlag(c, &noHeaders)
	output.AddFlag(c, &form, output.AsTable, output.AsWide, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// withNamespaces adds a column with the namespace in front, if all namespaces are listed.
func withNamespaces(t *output.Table, list client.ObjectList, all bool) *output.Table {
	items, err := meta.ExtractList(list)
	if !all || err != nil || len(items) != len(t.Rows) {
		return t
	}
	out := &output.Table{Header: append([]string{"NAMESPACE"}, t.Header...)}
	for i, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return t
		}
		out.Rows = append(out.Rows, append([]string{object.GetNamespace()}, t.Rows[i]...))
	}
	return out
}
