package cli

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

// listing describes a `list` command for one kind.
type listing struct {
	short, long, example string
	// noun is what is listed, in the plural.
	noun    string
	newList func() client.ObjectList
	// sort sorts the list.
	sort func(client.ObjectList)
	// rows makes the table. wide asks for every column.
	rows func(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption) (*output.Table, error)
}

func (s *clusterSession) list(l listing) *cobra.Command {
	var form, selector string
	var all, noHeaders bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: l.short, Long: l.long, Example: l.example,
		Args:              cmdline.ExactArgs(0, "no argument (select with -l, or name an object to describe)"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parsed, err := labels.Parse(selector)
			if err != nil {
				return failure.Usage("-l %s: %s", selector, err)
			}
			c, err := s.connect()
			if err != nil {
				return err
			}
			options := []client.ListOption{client.MatchingLabelsSelector{Selector: parsed}}
			where := "all namespaces"
			if !all {
				options = append(options, client.InNamespace(c.Namespace))
				where = "namespace " + c.Namespace
			}
			list := l.newList()
			if err := c.List(cmd.Context(), list, options...); err != nil {
				return fmt.Errorf("list %s in %s: %w", l.noun, where, err)
			}
			l.sort(list)
			if form == output.AsJSON || form == output.AsYAML || form == output.AsName {
				return output.PrintObject(cmd.OutOrStdout(), form, list)
			}
			if meta.LenList(list) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "No %s in %s.\n", l.noun, where)
				return nil
			}
			t, err := l.rows(cmd.Context(), c, list, form == output.AsWide, options)
			if err != nil {
				return err
			}
			t = withNamespaces(t, list, all)
			return t.WithoutHeader(noHeaders).Write(cmd.OutOrStdout())
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
