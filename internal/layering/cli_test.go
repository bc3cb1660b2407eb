package layering

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const commandLine = "internal/cli"

// commandGroups maps each package of commands to the packages of commands that it may import: a machine's description
// has the tables of its trackers and backups.
var commandGroups = map[string][]string{
	"internal/cli/backup":  nil,
	"internal/cli/disk":    nil,
	"internal/cli/repo":    nil,
	"internal/cli/tracker": nil,
	"internal/cli/vm":      {"internal/cli/backup", "internal/cli/tracker"},
}

// Only the root joins the groups of commands. What they share is below them. So a command is added or removed in one
// package.
func TestCommandLine_groupsShareOnlyWhatIsBelow(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range files(t) {
		if !strings.HasPrefix(f.pkg, commandLine+"/") || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		found[f.pkg] = true
		for _, spec := range f.parsed.Imports {
			imported := strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module)
			_, group := commandGroups[imported]
			switch {
			case imported == commandLine:
				t.Errorf("%s imports the root of the command line", f.path)
			case group && !slices.Contains(commandGroups[f.pkg], imported):
				t.Errorf("%s imports %s: move what both need into a package below them", f.path, imported)
			}
		}
	}
	for group := range commandGroups {
		if !found[group] {
			t.Errorf("there is no package %s", group)
		}
	}
}

// maxCommandLineFiles is how many files a package may have: a reader should see in one list what it is about.
const maxCommandLineFiles = 25

func TestCommandLine_packagesAreSmall(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for _, f := range files(t) {
		if f.pkg == commandLine || strings.HasPrefix(f.pkg, commandLine+"/") {
			count[filepath.Dir(f.path)]++
		}
	}
	for pkg, n := range count {
		if n > maxCommandLineFiles {
			t.Errorf("%s has %d files, more than %d: split it by what its files are about", pkg, n, maxCommandLineFiles)
		}
	}
}
