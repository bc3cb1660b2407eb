package disk

import (
	"testing"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// In its export, libvirt names the bitmap after the disk, not after the checkpoint. The error says how to change that.
func TestBitmap_libvirtsExportNamesIt(t *testing.T) {
	t.Parallel()
	d := &ram{data: noise(mib, 1), dirty: map[string]extent.Set{"backup-vda": set()}}
	uri := serveNBD(t, nbd.Export{Backend: d, ReadOnly: true})
	_, err := OpenSource(t.Context(), uri, SourceOptions{Bitmap: "vc1"})
	wantError(t, err, ErrNotFound, "has no bitmap vc1 (it has backup-vda)", "<disk name='vda' exportbitmap='vc1'>")
}
