package endpoint

import (
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/source"
)

// Whatever a server sends, regions are in order, apart, and on the disk, and everything else is of class Corrupt.
func FuzzMap(f *testing.F) {
	for _, text := range []string{
		`{"regions":[{"offset":0,"length":8,"type":"data"},{"offset":8,"length":8,"type":"zero"}],"next_offset":null,"size":16}`,
		`{"regions":[{"offset":0,"length":8,"type":"clean"}],"next_offset":8,"size":16}`,
		`{"extents":[{"offset":0,"length":8,"type":0,"description":"data"},{"offset":8,"length":8,"type":3,"description":"hole,zero"}],"next_offset":16}`,
		`{"regions":[{"offset":9223372036854775807,"length":2,"type":"data"}],"next_offset":null}`,
		`{"extents":[{"offset":-1,"length":1,"type":1,"description":"dirty"}],"next_offset":-1,"size":-1}`, `[]`, `{}`, ``,
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, kubeVirt bool) {
		dialect := Spec
		if kubeVirt {
			dialect = KubeVirt
		}
		var end int64
		r := &mapReader{request: MapRequest{Dialect: dialect, Clean: true}, report: func(region export.Region) bool {
			if !region.Valid() || region.Empty() || region.Offset < end || region.End() > source.MaxBytes {
				t.Errorf("region %v after %d", region, end)
			}
			end = region.End()
			return true
		}}
		check := func(err error) bool {
			if err != nil && errclass.Of(err) != errclass.Corrupt {
				t.Errorf("%v", err)
			}
			return err == nil
		}
		// The same page twice is two pages.
		for range 2 {
			p, err := decodePage(strings.NewReader(text), dialect)
			if !check(err) {
				return
			}
			more, err := r.addPage(p)
			if !check(err) || !more {
				break
			}
		}
		if check(r.checkEnd()) && r.stats.Bytes > 0 && end > r.stats.Bytes {
			t.Errorf("a region ends at %d of %d", end, r.stats.Bytes)
		}
	})
}
