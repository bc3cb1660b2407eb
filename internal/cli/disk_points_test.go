package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func points(ids ...string) []*repository.RestorePoint {
	var out []*repository.RestorePoint
	for i, id := range ids {
		out = append(out, &repository.RestorePoint{ID: id, Time: time.Unix(int64(i), 0)})
	}
	return out
}

func TestShortIDsAreUnique(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ids  []string
		want int
	}{
		"none":        {nil, shortID},
		"one":         {[]string{strings.Repeat("a", 32)}, shortID},
		"far apart":   {[]string{strings.Repeat("a", 32), strings.Repeat("b", 32)}, shortID},
		"close by":    {[]string{strings.Repeat("a", 32), strings.Repeat("a", 15) + strings.Repeat("b", 17)}, 16},
		"short ones":  {[]string{"abcd", "abce"}, shortID},
		"differ last": {[]string{strings.Repeat("a", 32), strings.Repeat("a", 31) + "b"}, 32},
	} {
		l := newPointList(mover.NewPoints(points(c.ids...), nil))
		if l.length != c.want {
			t.Errorf("%s: %d characters, want %d", name, l.length, c.want)
		}
		seen := map[string]bool{}
		for _, id := range c.ids {
			if seen[l.short(id)] {
				t.Errorf("%s: two are called %s", name, l.short(id))
			}
			seen[l.short(id)] = true
		}
	}
}

func TestRepositoryFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"nothing":           {nil, errclass.ExitOK},
		"password":          {repository.ErrPassword, errclass.ExitRefused},
		"damage":            {errclass.Corrupt, errclass.ExitFailure},
		"others at it":      {errclass.Conflict, errclass.ExitRefused},
		"not there":         {errclass.NotFound, errclass.ExitNotFound},
		"half of an ID":     {mover.ErrPrefix, errclass.ExitUsage},
		"half and nothing":  {errors.Join(errclass.NotFound, mover.ErrPrefix), errclass.ExitUsage},
		"not possible":      {errclass.Invalid, errclass.ExitRefused},
		"damage beats all":  {errors.Join(errclass.NotFound, errclass.Corrupt), errclass.ExitFailure},
		"no storage":        {&url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, errclass.ExitUnreachable},
		"interrupted":       {context.Canceled, errclass.ExitInterrupted},
		"a failure already": {usage("x"), errclass.ExitUsage},
		"anything else":     {errors.New("x"), errclass.ExitFailure},
	} {
		wrapped := c.err
		if wrapped != nil {
			wrapped = fmt.Errorf("do it: %w", c.err)
		}
		if got := Code(repositoryFailure(wrapped)); got != c.code {
			t.Errorf("%s: code %d, want %d", name, got, c.code)
		}
	}
}

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
		s := &session{Options: Options{Streams: Streams{Err: &shown, ReadPassword: func(context.Context) (string, error) {
			p := c.typed[0]
			c.typed = c.typed[1:]
			return p, nil
		}}}}
		if got, err := s.password(t.Context(), c.create); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if len(c.typed) > 0 || !strings.Contains(shown.String(), "Password") {
			t.Errorf("%s: not asked for: %q", name, shown.String())
		}
	}
}
