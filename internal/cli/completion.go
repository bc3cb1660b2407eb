package cli

import (
	"time"

	"github.com/spf13/cobra"
)

// completionTimeout is how long a shell may wait for a cluster that does not answer.
const completionTimeout = 3 * time.Second

// completer offers words that complete what the user has typed.
type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

func completeFixed(c *cobra.Command, flag string, words ...string) {
	register(c, flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	})
}

// register panics if the flag does not exist: then the command tree is wrong, and every test of it fails.
func register(c *cobra.Command, flag string, f completer) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}
