package mover

import (
	"path"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/repository"
)

// HistoryPath returns the path in the repository of the history of the machine with this name. HistoryName is its
// inverse.
func HistoryPath(name string) string { return path.Clean("/" + name) }

// HistoryName returns the name of the machine whose history this is.
func HistoryName(history repository.Source) string { return strings.TrimPrefix(history.Path, "/") }

// HistoryFilter selects histories: those that have all of what is set.
type HistoryFilter struct {
	Host, User string
	// Names are the names of machines, any of which will do.
	Names []string
}

// Selects reports whether the filter selects a history.
func (f *HistoryFilter) Selects(history repository.Source) bool {
	named := len(f.Names) == 0 || slices.ContainsFunc(f.Names, func(name string) bool { return HistoryPath(name) == history.Path })
	return named && (f.Host == "" || history.Host == f.Host) && (f.User == "" || history.User == f.User)
}
