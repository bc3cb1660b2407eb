package cmdline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Choice is a flag's value that must be one of a few words. Anything else is a usage error before anything is done.
type Choice struct {
	value     *string
	otherwise string
	words     []string
}

// NewChoice returns a choice that is otherwise until the flag is given. otherwise need not be one of the words.
func NewChoice(into *string, otherwise string, words []string) *Choice {
	*into = otherwise
	return &Choice{into, otherwise, words}
}

// AddChoice adds a flag that takes one of words, with completion.
func AddChoice(c *cobra.Command, into *string, name, otherwise, help string, words ...string) {
	c.Flags().Var(NewChoice(into, otherwise, words), name, help)
	CompleteFixed(c, name, words...)
}

func (c *Choice) String() string { return *c.value }
func (*Choice) Type() string     { return "string" }

func (c *Choice) Set(text string) error {
	if text != c.otherwise && !slices.Contains(c.words, text) {
		return fmt.Errorf("use one of %s", strings.Join(c.words, ", "))
	}
	*c.value = text
	return nil
}
