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
	rows func(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption) (*table, error)
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
			if form == asJSON || form == asYAML || form == asName {
				return printObject(cmd.OutOrStdout(), form, list)
			}
			if meta.LenList(list) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "No %s in %s.\n", l.noun, where)
				return nil
			}
			t, err := l.rows(cmd.Context(), c, list, form == asWide, options)
			if err != nil {
				return err
			}
			t = withNamespaces(t, list, all)
			return t.withoutHeader(noHeaders).write(cmd.OutOrStdout())
		},
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	c.Flags().StringVarP(&selector, "selector", "l", "", "list only objects with these labels, such as app=web,tier!=test")
	noHeadersFlag(c, &noHeaders)
	outputFlag(c, &form, asTable, asWide, asJSON, asYAML, asName)
	return c
}

// withNamespaces adds a column with the namespace in front, if all namespaces are listed.
func withNamespaces(t *table, list client.ObjectList, all bool) *table {
	items, err := meta.ExtractList(list)
	if !all || err != nil || len(items) != len(t.rows) {
		return t
	}
	out := &table{header: append([]string{"NAMESPACE"}, t.header...)}
	for i, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return t
		}
		out.rows = append(out.rows, append([]string{object.GetNamespace()}, t.rows[i]...))
	}
	return out
}
