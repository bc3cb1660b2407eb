package mover

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// points returns restore points with these IDs, oldest first.
func points(ids ...string) []*repository.RestorePoint {
	var out []*repository.RestorePoint
	for i, id := range ids {
		out = append(out, &repository.RestorePoint{ID: id, Time: time.Unix(int64(i), 0)})
	}
	return out
}

func TestPoints_findByTheBeginningOfAnID(t *testing.T) {
	t.Parallel()
	all := points("aaaa1111", "aaaa2222", "bbbb1111")
	for prefix, want := range map[string]struct {
		id   string
		err  error
		text string
	}{
		"aaaa1":     {id: "aaaa1111"},
		"aaaa2222":  {id: "aaaa2222"},
		"bbbb":      {id: "bbbb1111"},
		"aaaa":      {err: ErrPrefix, text: "the IDs of 2 begin like this: aaaa1111, aaaa2222"},
		"bbb":       {err: ErrPrefix, text: "at least 4 characters"},
		"":          {err: ErrPrefix},
		"cccc":      {err: errclass.NotFound, text: "restore point cccc: not found"},
		"aaaa11112": {err: errclass.NotFound},
	} {
		p, err := NewPoints(all, nil).Find(prefix)
		switch {
		case want.id != "" && (err != nil || p.ID != want.id):
			t.Errorf("%s: %v, %v", prefix, p, err)
		case want.id == "" && (!errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text)):
			t.Errorf("%s: %v", prefix, err)
		}
	}
	// A restore point that is not found may be among the unreadable ones. That is not the same as not existing.
	if _, err := NewPoints(all, errclass.Corrupt).Find("cccc"); !errors.Is(err, errclass.Corrupt) {
		t.Error(err)
	}
	found, err := NewPoints(all, nil).FindAll([]string{"bbbb", "aaaa1", "bbbb1"})
	if err != nil || len(found) != 2 || found[0].ID != "bbbb1111" {
		t.Errorf("%v: %v", found, err)
	}
}

func TestListSelectedPoints_findsAGroup(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	for _, c := range []struct{ name, group string }{{"web", "monday"}, {"mail", "tuesday"}} {
		d := &memoryDisk{content: noise(1, 1<<16)}
		q := BackupRequest{History: r.Source("", "", "/"+c.name), Sources: []Source{{Name: "root", Open: d.open}}, Group: c.group, Labels: map[string]string{"machine": c.name}}
		if _, err := Backup(t.Context(), r, q); err != nil {
			t.Fatal(err)
		}
	}
	found, err := ListSelectedPoints(t.Context(), r, repository.Filter{Group: "tuesday"})
	if err != nil || len(found.All) != 1 || found.All[0].Source.Path != "/mail" || found.All[0].Labels["machine"] != "mail" {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestFindDeletable(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	q := BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<16))}}}
	var ids []string
	for range 2 {
		p, err := Backup(t.Context(), r, q)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	find := func(prefixes ...string) ([]*repository.RestorePoint, error) {
		listed, err := ListPointsByID(t.Context(), r, prefixes...)
		if err != nil {
			return nil, err
		}
		return FindDeletable(t.Context(), r, listed, prefixes)
	}
	if found, err := find(ids[0], ids[1][:8]); err != nil || len(found) != 2 {
		t.Errorf("%v: %v", found, err)
	}
	if _, err := find(ids[0], "ffffffff"); !errors.Is(err, errclass.NotFound) {
		t.Error(err)
	}
	if _, err := r.Pin(t.Context(), ids[0], []string{"audit"}, nil); err != nil {
		t.Fatal(err)
	}
	var pinned *PinnedError
	if _, err := find(ids[1], ids[0]); !errors.As(err, &pinned) || pinned.Point.ID != ids[0] || !errors.Is(err, errclass.Conflict) {
		t.Error(err)
	}
}
