package flaky

import (
	"os"
	"testing"
)

// TestOnce fails until the file that TIERS_MARKER names is there, and makes it.
func TestOnce(t *testing.T) {
	t.Run("part of it", func(t *testing.T) {
		path := os.Getenv("TIERS_MARKER")
		if _, err := os.Stat(path); err == nil {
			return
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Error("fails once")
	})
}

func TestPasses(t *testing.T) {}
