package hostnet

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestAListThatChangesIsReadAgain(t *testing.T) {
	t.Parallel()
	reads := 0
	got, err := listWhole(func() ([]int, error) {
		if reads++; reads < 3 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if err != nil || len(got) != 2 || reads != 3 {
		t.Errorf("%v, %v after %d reads", got, err, reads)
	}
	broken := errors.New("broken")
	if _, err := listWhole(func() ([]int, error) { reads++; return nil, broken }); !errors.Is(err, broken) || reads != 4 {
		t.Errorf("%v after %d reads", err, reads)
	}
	if _, err := listWhole(func() ([]int, error) { return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("a list that never holds still: %v", err)
	}
}
