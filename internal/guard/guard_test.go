package guard

import (
	"errors"
	"strings"
	"testing"
)

func TestCall_turnsPanicsIntoErrors(t *testing.T) {
	t.Parallel()
	var p *PanicError
	err := Call(func() error { panic("a mistake") })
	if !errors.As(err, &p) || err.Error() != "internal error: a mistake" || !strings.Contains(p.Stack, "guard_test") {
		t.Errorf("%v", err)
	}
	failed := errors.New("failed")
	if err := Call(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	if err := Call(func() error { return nil }); err != nil {
		t.Errorf("%v", err)
	}
}
