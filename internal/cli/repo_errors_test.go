package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
)

// What package disk refuses, a flag allows. Only the command line knows its name.
func TestRepositoryFailure_namesTheFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		flag string
	}{
		{disk.ErrHasContent, "--overwrite"},
		{disk.ErrLargerTarget, "--larger"},
		{disk.ErrInUse, "--ignore-locks"},
		{disk.ErrBacking, "--backing"},
	} {
		var f *failure
		if err := repositoryFailure(errclass.Errorf(c.err, "disk x: refused")); !errors.As(err, &f) || !strings.Contains(f.hint, c.flag) {
			t.Errorf("%s: the hint is %q, want %s in it", c.err, f.hint, c.flag)
		}
	}
}
