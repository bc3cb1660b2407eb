package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/varvebackup/varve/internal/cli/human"
)

// everyday are the flags with which most users select the cluster. `varve options` shows the others.
var everyday = map[string]bool{"kubeconfig": true, "context": true, "namespace": true}

// clusterFlags adds kubectl's flags that select cluster, user and namespace. It hides all but the everyday ones.
func clusterFlags(flags *genericclioptions.ConfigFlags, to *pflag.FlagSet) {
	flags.AddFlags(to)
	to.VisitAll(func(f *pflag.Flag) { f.Hidden = !everyday[f.Name] })
}

// groups makes every command that only holds others refuse anything that is not one of them. cobra would show help and
// succeed.
func groups(c *cobra.Command) {
	for _, child := range c.Commands() {
		groups(child)
	}
	if c.Runnable() || !c.HasSubCommands() {
		return
	}
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			c.SetOut(c.ErrOrStderr())
			if err := c.Help(); err != nil {
				return fmt.Errorf("show help: %w", err)
			}
			return usage("%s needs a command", c.CommandPath())
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
		if like := c.SuggestionsFor(args[0]); len(like) > 0 {
			text += "; did you mean " + strings.Join(like, " or ") + "?"
		}
		return usage("%s", text)
	}
	c.DisableFlagsInUseLine = true
	c.SuggestionsMinimumDistance = 2
}

// rename makes help call the program what the user calls it.
func rename(root *cobra.Command, program string) {
	if program != "kubectl-varve" {
		return
	}
	root.Use = program
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl varve"}
	visit(root, func(c *cobra.Command) {
		c.Example = strings.ReplaceAll(c.Example, "  varve ", "  kubectl varve ")
		c.Long = strings.ReplaceAll(c.Long, "`varve ", "`kubectl varve ")
	})
}

// visit calls f with c and every command below it.
func visit(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, child := range c.Commands() {
		visit(child, f)
	}
}

// serversTopic is `varve help servers`: the hidden commands.
func serversTopic(root *cobra.Command) *cobra.Command {
	topic := &cobra.Command{Use: "servers", Short: "The commands that run Varve's components"}
	topic.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintln(c.OutOrStdout(), "Servers: run by the manifests in deploy/, not by users.")
		for _, server := range root.Commands() {
			if _, is := server.Annotations[isServer]; is {
				fmt.Fprintf(c.OutOrStdout(), "\n  %-12s %s", server.Name(), server.Short)
			}
		}
		fmt.Fprintln(c.OutOrStdout())
	})
	return topic
}

// optionsTopic is `varve help options`: every flag that selects the cluster.
func optionsTopic(root *cobra.Command) *cobra.Command {
	topic := &cobra.Command{Use: "options", Short: "All flags that select cluster, user and namespace"}
	topic.SetHelpFunc(func(c *cobra.Command, _ []string) {
		all := pflag.NewFlagSet("options", pflag.ContinueOnError)
		genericclioptions.NewConfigFlags(true).AddFlags(all)
		fmt.Fprintf(c.OutOrStdout(), "Flags of every command of %s that talks to a cluster:\n\n%s", root.DisplayName(), all.FlagUsages())
	})
	return topic
}

// exactArgs and the functions below are cobra's, but return a usage error.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usage("%s needs %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}

func atLeastOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= 1 {
			return nil
		}
		return usage("%s needs %s", c.CommandPath(), what)
	}
}

func atMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return usage("%s takes %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}
