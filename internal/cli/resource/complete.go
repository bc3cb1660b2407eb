package resource

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
)

// NewVMs and the functions below return an empty list of a kind.
func NewVMs() client.ObjectList        { return &kubevirtv1.VirtualMachineList{} }
func NewBackups() client.ObjectList    { return &backupv1.VirtualMachineBackupList{} }
func NewTrackers() client.ObjectList   { return &backupv1.VirtualMachineBackupTrackerList{} }
func NewClaims() client.ObjectList     { return &corev1.PersistentVolumeClaimList{} }
func newNamespaces() client.ObjectList { return &corev1.NamespaceList{} }

// CompleteArgs offers the names of objects for the first most arguments.
func (s *Session) CompleteArgs(newList func() client.ObjectList, most int) cmdline.Completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return s.listNames(c.Context(), "", newList(), typed, args)
	}
}

// CompleteFlag offers the names of objects as a flag's value.
func (s *Session) CompleteFlag(c *cobra.Command, flag string, newList func() client.ObjectList) {
	cmdline.RegisterCompletion(c, flag, func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return s.listNames(c.Context(), "", newList(), typed, nil)
	})
}

// CompleteFlagIn is CompleteFlag for objects in the namespace that another flag names.
func (s *Session) CompleteFlagIn(c *cobra.Command, flag, namespaceFlag string, newList func() client.ObjectList) {
	cmdline.RegisterCompletion(c, flag, func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		namespace := ""
		if f := c.Flags().Lookup(namespaceFlag); f != nil {
			namespace = f.Value.String()
		}
		return s.listNames(c.Context(), namespace, newList(), typed, nil)
	})
}

// listNames lists the objects of a namespace, or if it is empty of the selected one, whose names begin with what was typed, without those
// in except. Completion cannot show an error: without a cluster it offers nothing.
func (s *Session) listNames(ctx context.Context, namespace string, list client.ObjectList, typed string, except []string) ([]string, cobra.ShellCompDirective) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, cmdline.CompletionTimeout)
	defer cancel()
	c, err := s.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	if err := c.List(ctx, list, client.InNamespace(cmp.Or(namespace, c.Namespace))); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	taken := map[string]bool{}
	for _, name := range except {
		taken[name] = true
	}
	var names []string
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err == nil && strings.HasPrefix(object.GetName(), typed) && !taken[object.GetName()] {
			names = append(names, object.GetName())
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
