package mover

import (
	"testing"

	"github.com/varvebackup/varve/internal/repository"
)

func TestHistoryPath(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"web": "/web", "/web": "/web", "shop/web": "/shop/web", "web/": "/web", "../web": "/web"} {
		if got := HistoryPath(name); got != path {
			t.Errorf("%s has the path %s, want %s", name, got, path)
		}
	}
}

func TestHistoryFilter(t *testing.T) {
	t.Parallel()
	history := repository.Source{Host: "h", User: "u", Path: "/web"}
	for name, c := range map[string]struct {
		filter HistoryFilter
		want   bool
	}{
		"everything":   {HistoryFilter{}, true},
		"all of it":    {HistoryFilter{Host: "h", User: "u", Names: []string{"db", "web"}}, true},
		"another name": {HistoryFilter{Host: "h", Names: []string{"db"}}, false},
		"another host": {HistoryFilter{Host: "other"}, false},
		"another user": {HistoryFilter{Host: "h", User: "other"}, false},
	} {
		if got := c.filter.Selects(history); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
