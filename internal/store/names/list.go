package names

import (
	"fmt"
	"slices"
	"strings"
)

// MaxListed is how many names a message lists.
const MaxListed = 10

// ListSome returns a text with the first MaxListed of some names, and how many more there are. It sorts the names.
func ListSome(all []string) string {
	slices.Sort(all)
	text := strings.Join(all[:min(len(all), MaxListed)], ", ")
	if more := len(all) - MaxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
