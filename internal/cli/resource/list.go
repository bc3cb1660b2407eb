package resource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
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
	// Also are further kinds, listed together with it.
	Also []func() client.ObjectList
	// Sort sorts the list.
	Sort func(client.ObjectList)
	// Rows makes the table. wide asks for every column.
	Rows func(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption) (*output.Table, error)
}

// listFlags are the flags of a `list` command.
type listFlags struct {
	form, selector        string
	all, noHeaders, watch bool
}

func (f *listFlags) addFlags(c *cobra.Command) {
	c.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "list the objects of all namespaces")
	c.Flags().StringVarP(&f.selector, "selector", "l", "", "list only objects with these labels, such as app=web,tier!=test")
	c.Flags().BoolVarP(&f.watch, "watch", "w", false, "after listing, show each object that changes or is deleted, until interrupted")
	output.AddNoHeadersFlag(c, &f.noHeaders)
	output.AddFlag(c, &f.form, output.AsTable, output.AsWide, output.AsJSON, output.AsYAML, output.AsName)
}

// ListCommand makes a `list` command.
func (s *Session) ListCommand(l Listing) *cobra.Command {
	var f listFlags
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: l.Short, Long: l.Long, Example: l.Example,
		Args:              cmdline.ExactArgs(0, "no argument (select with -l, or name an object to describe)"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parsed, err := labels.Parse(f.selector)
			if err != nil {
				return failure.Usage("-l %s: %s", f.selector, err)
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			options := []client.ListOption{client.MatchingLabelsSelector{Selector: parsed}}
			where := "all namespaces"
			if !f.all {
				options = append(options, client.InNamespace(c.Namespace))
				where = "namespace " + c.Namespace
			}
			shown := &shownList{
				Listing: l, client: c, options: options, where: where, all: f.all, empty: cmd.ErrOrStderr(),
				printer: &output.Printer{Out: cmd.OutOrStdout(), Form: f.form, NoHeaders: f.noHeaders},
			}
			if f.watch {
				return shown.watchChanges(cmd.Context(), s.Warn)
			}
			list, err := shown.list(cmd.Context())
			if err != nil {
				return fmt.Errorf("list %s in %s: %w", l.Noun, where, err)
			}
			return shown.printAll(cmd.Context(), list)
		},
	}
	f.addFlags(c)
	return c
}

// shownList is a list as the user wants to see it.
type shownList struct {
	Listing

	client  *cluster.Client
	options []client.ListOption
	// where completes "in".
	where   string
	all     bool
	printer *output.Printer
	// empty is told that there is nothing to show.
	empty io.Writer
}

// kinds returns what makes an empty list of each kind.
func (l *shownList) kinds() []func() client.ObjectList {
	return append([]func() client.ObjectList{l.NewList}, l.Also...)
}

// list returns all objects: a list of their kind, or one of several kinds.
func (l *shownList) list(ctx context.Context) (list client.ObjectList, err error) {
	var items []runtime.Object
	for _, newList := range l.kinds() {
		list = newList()
		if err := l.client.List(ctx, list, l.options...); err != nil {
			return nil, err
		}
		found, err := meta.ExtractList(list)
		if err != nil {
			return nil, err
		}
		items = append(items, found...)
	}
	if len(l.Also) == 0 {
		return list, nil
	}
	all := &corev1.List{}
	return all, meta.SetList(all, items)
}

// watchChanges prints the list, and then what changes, until the user ends it. That is no failure.
func (l *shownList) watchChanges(ctx context.Context, warn func(error)) error {
	var mu sync.Mutex
	group, within := errgroup.WithContext(ctx)
	empty := 0
	for _, newList := range l.kinds() {
		group.Go(func() error {
			return cluster.FollowList(within, l.client, newList(), l.options, func(list client.ObjectList) error {
				mu.Lock()
				defer mu.Unlock()
				if meta.LenList(list) > 0 || !l.isForPeople() {
					return l.printEach(within, list)
				}
				if empty++; empty == 1+len(l.Also) {
					fmt.Fprintf(l.empty, "No %s in %s yet.\n", l.Noun, l.where)
				}
				return nil
			}, warn)
		})
	}
	err := group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch %s in %s: %w", l.Noun, l.where, err)
	}
	return nil
}

// printEach prints a table, or for programs each object alone, because the list has no end.
func (l *shownList) printEach(ctx context.Context, list client.ObjectList) error {
	if !output.IsForPrograms(l.printer.Form) {
		return l.printAll(ctx, list)
	}
	l.Sort(list)
	return meta.EachListItem(list, l.printer.PrintObject)
}

// isForPeople reports whether an empty list is told in words.
func (l *shownList) isForPeople() bool {
	return output.IsCustomColumns(l.printer.Form) || !output.IsForPrograms(l.printer.Form)
}

// printAll prints the whole list.
func (l *shownList) printAll(ctx context.Context, list client.ObjectList) error {
	l.Sort(list)
	switch {
	case meta.LenList(list) == 0 && l.isForPeople():
		fmt.Fprintf(l.empty, "No %s in %s.\n", l.Noun, l.where)
		return nil
	case output.IsForPrograms(l.printer.Form):
		return l.printer.PrintObject(list)
	}
	t, err := l.Rows(ctx, l.client, list, l.printer.Form == output.AsWide, l.options)
	if err != nil {
		return err
	}
	return l.printer.PrintTable(withNamespaces(t, list, l.all))
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
