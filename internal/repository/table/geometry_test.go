package table

import (
	"errors"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

func TestBlockSizesHaveNames(t *testing.T) {
	t.Parallel()
	if got := strings.Join(BlockSizes(), " "); got != "256KiB 1MiB 4MiB" {
		t.Errorf("offered: %s", got)
	}
	for _, name := range BlockSizes() {
		n, err := ParseBlockSize(name)
		if err != nil || blockSizeName(n) != name {
			t.Errorf("%s is %d: %v", name, n, err)
		}
		if _, err := NewGeometry(1, n); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "256", "1 MiB", "8MiB", "0KiB"} {
		if n, err := ParseBlockSize(bad); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%q is %d: %v", bad, n, err)
		}
	}
	if _, err := NewGeometry(1, 12345); err == nil || !strings.Contains(err.Error(), "256KiB, 1MiB, 4MiB are offered") {
		t.Error(err)
	}
}
