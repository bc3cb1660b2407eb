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

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
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
		l := newPointList(points(c.ids...), nil)
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

func TestFind(t *testing.T) {
	t.Parallel()
	all := points("aaaa1111", "aaaa2222", "bbbb1111")
	for prefix, want := range map[string]struct {
		id   string
		code int
		text string
	}{
		"aaaa1":     {id: "aaaa1111"},
		"aaaa2222":  {id: "aaaa2222"},
		"bbbb":      {id: "bbbb1111"},
		"aaaa":      {code: errclass.ExitUsage, text: "the IDs of 2 begin like this: aaaa1111, aaaa2222"},
		"bbb":       {code: errclass.ExitUsage, text: "at least 4 characters"},
		"":          {code: errclass.ExitUsage},
		"cccc":      {code: errclass.ExitNotFound, text: "restore point cccc: not found"},
		"aaaa11112": {code: errclass.ExitNotFound},
	} {
		p, err := newPointList(all, nil).find(prefix)
		switch {
		case want.id != "" && (err != nil || p.ID != want.id):
			t.Errorf("%s: %v, %v", prefix, p, err)
		case want.id == "" && (Code(repositoryFailure(err)) != want.code || !strings.Contains(err.Error(), want.text)):
			t.Errorf("%s: %v", prefix, err)
		}
	}
	// A restore point that is not found may be among the unreadable ones. That is not the same as not existing.
	if _, err := newPointList(all, errclass.Corrupt).find("cccc"); !errors.Is(err, errclass.Corrupt) {
		t.Error(err)
	}
	found, err := newPointList(all, nil).findAll([]string{"bbbb", "aaaa1", "bbbb1"})
	if err != nil || len(found) != 2 || found[0].ID != "bbbb1111" {
		t.Errorf("%v: %v", found, err)
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

func TestSourceNames(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"web": "/web", "/web": "/web", "shop/web": "/shop/web", "web/": "/web", "../web": "/web"} {
		if got := sourcePath(name); got != path {
			t.Errorf("%s has the path %s, want %s", name, got, path)
		}
	}
	f := sourceFlags{host: "h"}
	source := repository.Source{Host: "h", User: "u", Path: "/web"}
	if !f.selects(source, nil) || !f.selects(source, []string{"web"}) || f.selects(source, []string{"db"}) {
		t.Error("names")
	}
	if source.Host = "other"; f.selects(source, nil) {
		t.Error("another host")
	}
}

// With --per-disk, a restore point stays if it is the only one that has some disk. Damage counts only for the damaged
// disk.
func TestPruneDecides(t *testing.T) {
	t.Parallel()
	history := points("1111", "2222", "3333")
	for i, names := range [][]string{{"root", "old"}, {"root"}, {"root"}} {
		for _, name := range names {
			history[i].Disks = append(history[i].Disks, repository.Disk{Name: name})
		}
	}
	bad := map[string]map[string]bool{"3333": {"root": true}}
	for name, c := range map[string]struct {
		q    pruning
		want []string
	}{
		"whole":    {pruning{}, []string{"not good, but no newer one is good", "last good one, last 1", ""}},
		"per disk": {pruning{perDisk: true}, []string{"root: not good, but no newer one is good", "root: last good one + last 1", "old: last good one + last 1"}},
	} {
		c.q.policy = retention.Policy{Last: 1, RemoveDamaged: true}
		verdicts, err := c.q.decide(time.Unix(100, 0), history, bad)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range verdicts {
			got = append(got, strings.Join(v.Reasons, ", "))
			if v.Keep != (len(v.Reasons) > 0) || v.Damaged != (v.ID == "3333") {
				t.Errorf("%s: %+v", name, v)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Neither --per-vm nor --per-disk removes the restore point that was made last, even if a clock that was behind gave it
// an old time.
func TestPruneDecides_keepsWhatWasMadeLast(t *testing.T) {
	t.Parallel()
	history := points("1111", "2222", "3333")
	for _, p := range history {
		p.Disks = []repository.Disk{{Name: "root"}}
	}
	history[0].After = history[2].Time
	for _, perDisk := range []bool{false, true} {
		q := pruning{policy: retention.Policy{Last: 1}, perDisk: perDisk}
		verdicts, err := q.decide(time.Unix(100, 0), history, nil)
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]bool{}
		for _, v := range verdicts {
			kept[v.ID] = v.Keep
		}
		if diff := cmp.Diff(map[string]bool{"1111": true, "2222": false, "3333": true}, kept); diff != "" {
			t.Errorf("per disk %t: %s", perDisk, diff)
		}
	}
}
