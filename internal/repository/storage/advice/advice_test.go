package advice_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
	"github.com/varvebackup/varve/internal/repository/storage/advice/advicetest"
)

func TestFor_everyCause(t *testing.T) {
	t.Parallel()
	v := advice.Voice{Place: "PLACE", There: "THERE", Keys: "KEYS"}
	seen := map[advice.Cause]bool{}
	for _, c := range advicetest.Cases() {
		v.StorageOnly, v.Directory = c.Directory, c.Directory
		a, ok := advice.For(c.Err, v)
		if !ok || a.Cause != c.Cause || !strings.Contains(a.What, c.What) || !strings.HasPrefix(a.What, "PLACE") ||
			strings.ContainsAny(a.What+a.Do, "{}") {
			t.Errorf("%s: %+v, want %s: %s", c.Name, a, c.Cause, c.What)
		}
		if c.Cause == advice.Full && (!errors.Is(c.Err, errclass.Exhausted) || !strings.Contains(a.Do, "THERE")) {
			t.Errorf("%s: class %v, %s", c.Name, errclass.Of(c.Err), a.Do)
		}
		seen[a.Cause] = true
	}
	if len(seen) != 11 {
		t.Errorf("only the causes %v are tested", seen)
	}
}

// What a disk or another class may have caused as well is not told of a storage.
func TestFor_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New("x"), syscall.ENOSPC, syscall.EDQUOT,
		errclass.Errorf(errclass.ErrTargetFull, "target: %w", syscall.ENOSPC), syscall.EACCES, syscall.EROFS,
		errclass.Transient, context.DeadlineExceeded, fmt.Errorf("%w: %w", errclass.Invalid,
			&url.Error{Op: "parse", URL: ":", Err: errors.New("x")}),
	} {
		if a, ok := advice.For(err, advice.Voice{}); ok {
			t.Errorf("%v: %+v", err, a)
		}
	}
}
