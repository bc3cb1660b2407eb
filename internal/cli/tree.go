package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/varvebackup/varve/internal/cli/failure"
)

// refuseUnknownCommands makes every command that only holds others refuse anything that is not one of them. cobra would
// show help and succeed.
func refuseUnknownCommands(c *cobra.Command) {
	for _, child := range c.Commands() {
		refuseUnknownCommands(child)
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
			return failure.Misused(c, "%s needs a command", c.CommandPath())
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
		if like := c.SuggestionsFor(args[0]); len(like) > 0 {
			text += "; did you mean " + strings.Join(like, " or ") + "?"
		}
		return failure.Misused(c, "%s", text)
	}
	c.DisableFlagsInUseLine = true
	c.SuggestionsMinimumDistance = 2
}

// applyProgramName makes help call the program what the user calls it.
func applyProgramName(root *cobra.Command, program string) {
	if program != plugin {
		return
	}
	root.Use = program
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl varve"}
	visitCommands(root, func(c *cobra.Command) {
		c.Example = strings.ReplaceAll(c.Example, "  varve ", "  kubectl varve ")
		c.Long = asPlugin(c.Long)
	})
}

// plugin is the name of this program as a plugin of kubectl, which its users call `kubectl varve`.
const plugin = "kubectl-varve"

// asPlugin returns a text whose commands begin as the plugin's users type them.
func asPlugin(text string) string { return strings.ReplaceAll(text, "`varve ", "`kubectl varve ") }

// visitCommands calls f with c and every command below it.
func visitCommands(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, child := range c.Commands() {
		visitCommands(child, f)
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

// flagFailure returns a usage error for a flag that cannot be parsed, in words that do not name a parser.
func flagFailure(c *cobra.Command, err error) error {
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &missing):
		return failure.Misused(c, "--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &invalid):
		return failure.Usage("--%s %s: %s", invalid.GetFlag().Name, invalid.GetValue(), describeExpected(invalid))
	default:
		return failure.Misused(c, "%s", err)
	}
}

// describeExpected says what a flag takes instead of a value that it has refused.
func describeExpected(err *pflag.InvalidValueError) string {
	switch kind := err.GetFlag().Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		return "give a smaller number"
	case strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint"):
		return "give a whole number"
	case strings.HasPrefix(kind, "float"):
		return "give a number"
	case kind == "bool":
		return "give true or false"
	case kind == "duration":
		return "give a length of time, such as 90s or 2h"
	case kind == "stringToString":
		return "give NAME=VALUE, such as tier=1"
	default:
		return err.Unwrap().Error()
	}
}
