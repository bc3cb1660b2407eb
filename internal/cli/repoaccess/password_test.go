package repoaccess

import (
	"context"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/cli/session"
)

func TestPasswordPrompts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		typed  []string
		create bool
		want   string
	}{
		"once":      {typed: []string{"a"}, want: "a"},
		"twice":     {typed: []string{"a", "a"}, create: true, want: "a"},
		"differing": {typed: []string{"a", "b"}, create: true},
		"empty":     {typed: []string{""}},
	} {
		var shown strings.Builder
		s := NewSession(&session.Session{Streams: session.Streams{Err: &shown, ReadPassword: func(context.Context) (string, error) {
			p := c.typed[0]
			c.typed = c.typed[1:]
			return p, nil
		}}})
		if got, err := s.ReadPassword(t.Context(), c.create); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if len(c.typed) > 0 || !strings.Contains(shown.String(), "Password") {
			t.Errorf("%s: not asked for: %q", name, shown.String())
		}
	}
}
