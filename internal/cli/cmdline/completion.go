package cmdline

import (
	"time"

	"github.com/spf13/cobra"
)

// CompletionTimeout is how long a shell may wait for a cluster that does not answer.
const CompletionTimeout = 3 * time.Second

// Completer offers words that complete what the user has typed.
type Completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// CompleteFixed offers words as the value of a flag.
func CompleteFixed(c *cobra.Command, flag string, words ...string) {
	RegisterCompletion(c, flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	})
}

// RegisterCompletion panics if the flag does not exist: then the command tree is wrong, and every test of it fails.
func RegisterCompletion(c *cobra.Command, flag string, f Completer) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}
