package repository

import (
	"errors"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

// Manifests are JSON, which replaces each byte that is not UTF-8 by another character: two names would become one, and no such
// name would be found again.
func TestRequest_refusesNamesThatCannotBeStored(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	for name, change := range map[string]func(q *Request){
		"disk": func(q *Request) {
			q.Disks = append(q.Disks, q.Disks[0])
			q.Disks[0].Name, q.Disks[1].Name = "a\xfe", "a\xff"
		},
		"path": func(q *Request) { q.Source.Path = "/\xff" },
		"host": func(q *Request) { q.Source.Host = "\xff" },
		"user": func(q *Request) { q.Source.User = "\xff" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newBitmapDisk(mib).request("", "c1", 1)
			change(&q)
			if p, err := r.Backup(t.Context(), q); !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("%v", err)
				if p != nil {
					_, err := r.Get(t.Context(), p.ID)
					found, _ := r.List(t.Context(), &q.Source)
					t.Errorf("a restore point was made: reading it: %v; %d are listed", err, len(found))
				}
			}
		})
	}
}
