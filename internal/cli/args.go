package cli

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// exactArgs and the functions below are cobra's, but return a usage error.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return failure.Misused(c, "%s needs %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}

func atLeastOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= 1 {
			return nil
		}
		return failure.Misused(c, "%s needs %s", c.CommandPath(), what)
	}
}

func atMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return failure.Misused(c, "%s takes %s, and got %s", c.CommandPath(), what, human.Count(len(args), "argument"))
	}
}
