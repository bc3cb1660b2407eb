package guest

import (
	"bytes"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
)

func TestPadChecksum(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, content string
		blocks        int // of zeros that bring the checksum below 2^31
	}{
		{"small", "b", 0},
		{"empty", "", 0},
		{"large, one block", "d", 1},
		{"large, several blocks", "a", 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kernel")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := padChecksum(path); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if crc32.ChecksumIEEE(got) >= 1<<31 {
				t.Errorf("checksum %x", crc32.ChecksumIEEE(got))
			}
			if want := append([]byte(tt.content), make([]byte, 512*tt.blocks)...); !bytes.Equal(got, want) {
				t.Errorf("%q became %d bytes, want %d: %q…", tt.content, len(got), len(want), got[:min(len(got), 8)])
			}
		})
	}
}
