// Package cmdline checks and completes what the user types: arguments, and flags that take one of a few words or a size.
package cmdline

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// ExactArgs takes n arguments. It and the functions below are cobra's, but return a usage error. what says what is needed.
func ExactArgs(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return failure.Misused(c, "%s needs %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}

// AtLeastOne takes one argument or more.
func AtLeastOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= 1 {
			return nil
		}
		return failure.Misused(c, "%s needs %s", c.CommandPath(), what)
	}
}

// AtMostOne takes no argument or one.
func AtMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return failure.Misused(c, "%s takes %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}
