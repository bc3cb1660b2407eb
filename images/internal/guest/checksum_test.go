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
		small         bool // The checksum is below 2^31 already.
	}{
		{"small", "b", true},
		{"empty", "", true},
		{"large, one block", "d", false},
		{"large, several blocks", "a", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if small := crc32.ChecksumIEEE([]byte(tt.content)) < 1<<31; small != tt.small {
				t.Fatalf("the checksum of the input is small: %v", small)
			}
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
			rest, ok := bytes.CutPrefix(got, []byte(tt.content))
			if !ok || len(rest)%padBytes != 0 || (len(rest) == 0) != tt.small || len(bytes.Trim(rest, "\x00")) != 0 {
				t.Errorf("%q became %d bytes: %q…", tt.content, len(got), got[:min(len(got), 8)])
			}
		})
	}
}
