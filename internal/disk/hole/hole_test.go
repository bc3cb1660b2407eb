package hole

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
)

func TestNextData(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, mib) // allocated zeroes are data
	_, one := f.WriteAt(block, mib)
	_, two := f.WriteAt(block, 4*mib)
	if err := errors.Join(one, two, f.Truncate(8*mib)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ within, want extent.Extent }{
		{extent.Extent{Length: 8 * mib}, extent.Extent{Offset: mib, Length: mib}},
		{extent.Extent{Offset: mib + 5, Length: 10}, extent.Extent{Offset: mib + 5, Length: 10}},
		{extent.Extent{Offset: 2 * mib, Length: 6 * mib}, extent.Extent{Offset: 4 * mib, Length: mib}},
		{extent.Extent{Offset: 2 * mib, Length: 2 * mib}, extent.Extent{}},
		{extent.Extent{Offset: 5 * mib, Length: 3 * mib}, extent.Extent{}},
		{extent.Extent{Offset: mib}, extent.Extent{}},
		{extent.Extent{Offset: 9 * mib, Length: mib}, extent.Extent{}}, // as if the file had been longer before
	} {
		if got, err := NextData(f, c.within); err != nil || got != c.want {
			t.Errorf("within %s: %s, want %s (%v)", c.within, got, c.want, err)
		}
	}
}

func TestNextData_ofAClosedFile(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := NextData(f, extent.Extent{Length: 1}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}
