package export_test

import (
	"testing"

	"github.com/varvebackup/varve/internal/export"
)

// The check value of CRC-32/ISO-HDLC, which is zlib's.
func TestChecksum_isZlibs(t *testing.T) {
	t.Parallel()
	if got := export.Checksum([]byte("123456789")); got != 0xcbf43926 {
		t.Errorf("%#x", got)
	}
}
