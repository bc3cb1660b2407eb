package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// choice is a flag's value that must be one of a few words. Anything else is a usage error before anything is done.
type choice struct {
	value     *string
	otherwise string
	words     []string
}

// newChoice returns a choice that is otherwise until the flag is given. otherwise need not be one of the words.
func newChoice(into *string, otherwise string, words []string) *choice {
	*into = otherwise
	return &choice{into, otherwise, words}
}

// choiceFlag adds a flag that takes one of words, with completion.
func choiceFlag(c *cobra.Command, into *string, name, otherwise, help string, words ...string) {
	c.Flags().Var(newChoice(into, otherwise, words), name, help)
	completeFixed(c, name, words...)
}

func (c *choice) String() string { return *c.value }
func (*choice) Type() string     { return "string" }

func (c *choice) Set(text string) error {
	if text != c.otherwise && !slices.Contains(c.words, text) {
		return fmt.Errorf("use one of %s", strings.Join(c.words, ", "))
	}
	*c.value = text
	return nil
}
