package exporttest

import (
	"bytes"
	"testing"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

func TestVolume_regionsCoverAndReadsAgree(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		v := NewVolume("disk", 5<<20+4096, incremental, 7)
		whole := extent.Extent{Length: v.Description.Bytes}
		var at int64
		var last export.Kind
		err := v.Regions(t.Context(), whole, func(r export.Region) bool {
			if r.Offset != at || r.Kind == last || r.Empty() {
				t.Errorf("region %v of kind %d follows kind %d at %d", r.Extent, r.Kind, last, at)
			}
			at, last = r.End(), r.Kind
			return true
		})
		if err != nil || at != whole.Length {
			t.Fatalf("regions end at %d: %v", at, err)
		}
		read := make([]byte, whole.Length)
		err = v.Read(t.Context(), whole, export.Everything, func(c export.Chunk) error {
			copy(read[c.Offset:c.End()], c.Data)
			return nil
		})
		if err != nil || !bytes.Equal(read, v.Content) {
			verdict.Errorf(t, "incremental %v: other bytes: %v", incremental, err)
		}
	}
}
