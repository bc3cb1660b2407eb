package store

import (
	"errors"
	"strings"
	"testing"
)

// registered is what the driver says of kubelet.
type registered struct{ err error }

func (r *registered) Ready() error { return r.err }

// The store is ready when it has reported its disks, and as long as kubelet calls its driver.
func TestReadiness(t *testing.T) {
	t.Parallel()
	driver := &registered{err: errors.New("kubelet has not yet registered the driver")}
	r := &readiness{driver: driver}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "not yet looked at its disks"},
		{r.noteLook, "kubelet has not yet registered"},
		{func() { driver.err = nil }, ""},
		{func() { driver.err = errors.New("kubelet refused the driver") }, "kubelet refused"},
	} {
		step.do()
		err := r.check(nil)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%v, want %q", err, step.want)
		}
	}
}
