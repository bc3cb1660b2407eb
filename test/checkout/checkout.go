// Package checkout finds files of this repository for tests. `go test` runs a test in its package's directory, and
// with -trimpath a binary does not know the path of its sources, so the search begins at the working directory.
package checkout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
)

// Root returns the repository's root, as the first call finds it. The working directory must then be below the root.
var Root = sync.OnceValues(func() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return root(start)
})

// clause is the first line of the root's go.mod. The modules of box, images and test/peers have other names.
var clause = regexp.MustCompile(`(?m)^module github\.com/varvebackup/varve$`)

// root returns the closest directory, from start upwards, that has this module's go.mod.
func root(start string) (string, error) {
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		if clause.Match(text) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod of Varve in %s or above it", start)
		}
	}
}
