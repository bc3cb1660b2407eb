package target

import (
	"os"
	"testing"
)

func TestProbe_leavesNothing(t *testing.T) {
	t.Parallel()
	v := open(t, t.TempDir())
	if err := v.Begin("vm/b1", "u"); err != nil {
		t.Fatal(err)
	}
	p, err := v.OpenProbe("vm/b1")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := p.Write(); err != nil {
			t.Error(err)
		}
	}
	if info, err := p.file.Stat(); err != nil || info.Size() != probeBytes {
		t.Errorf("the probe has %d bytes: %v", info.Size(), err)
	}
	if left, err := os.ReadDir(v.Path("vm/b1.partial")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Write(); err == nil {
		t.Error("wrote after the end")
	}
}
