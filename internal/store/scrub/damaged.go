package scrub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// damagedFile is what stateFile is kept as if it makes no sense.
const damagedFile = stateFile + ".damaged"

// isNonsense says whether an error of readState is that the state was read and makes no sense.
func isNonsense(err error) bool {
	var unread *fs.PathError
	return err != nil && !errors.As(err, &unread)
}

// keepDamaged keeps a state that makes no sense beside itself.
func keepDamaged(dir string) error {
	kept := filepath.Join(dir, damagedFile)
	err := os.Remove(kept)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Link(filepath.Join(dir, stateFile), kept)
	}
	if err != nil {
		return fmt.Errorf("keep the damaged %s: %w", stateFile, err)
	}
	return nil
}
