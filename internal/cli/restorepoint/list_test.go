package restorepoint

import (
	"strings"
	"testing"
	"time"

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
		l := NewList(mover.NewPoints(points(c.ids...), nil))
		if l.Length != c.want {
			t.Errorf("%s: %d characters, want %d", name, l.Length, c.want)
		}
		seen := map[string]bool{}
		for _, id := range c.ids {
			if seen[l.ShortID(id)] {
				t.Errorf("%s: two are called %s", name, l.ShortID(id))
			}
			seen[l.ShortID(id)] = true
		}
	}
}

func TestSnapshotID_isThatOfVolumes(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0a", 16)
	volume := repository.Source{Host: "data-mover", User: "varve", Path: "/app/data"}
	for name, c := range map[string]struct {
		p    repository.RestorePoint
		want string
	}{
		"a disk":               {repository.RestorePoint{ID: id, Source: volume}, "varve1.disk." + id + ".app"},
		"files":                {repository.RestorePoint{ID: id, Source: volume, Files: &repository.Files{}}, "varve1.files." + id + ".app"},
		"a machine's":          {repository.RestorePoint{ID: id, Source: repository.Source{Host: "host1", User: "root", Path: "/app/data"}}, ""},
		"a name without claim": {repository.RestorePoint{ID: id, Source: repository.Source{Host: "data-mover", User: "varve", Path: "/web"}}, ""},
		"another ID":           {repository.RestorePoint{ID: "x", Source: volume}, ""},
	} {
		if got := SnapshotID(&c.p); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
