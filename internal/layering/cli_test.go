package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const commandLine = "internal/cli"

// commandsUsedBy are the groups of commands that another group may import: a machine's description has the tables of its
// trackers and backups, and the state of a machine is that of its schedules.
var commandsUsedBy = map[string][]string{
	"internal/cli/vm":     {"internal/cli/backup", "internal/cli/tracker"},
	"internal/cli/status": {"internal/cli/schedule"},
}

// commandGroups returns the packages below the command line that have a group of commands: those with a NewCommand.
func commandGroups(t *testing.T, all []file) map[string]bool {
	t.Helper()
	groups := map[string]bool{}
	for _, f := range all {
		if !strings.HasPrefix(f.pkg, commandLine+"/") || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		whole, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f.path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range whole.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Recv == nil && function.Name.Name == "NewCommand" {
				groups[f.pkg] = true
			}
		}
	}
	return groups
}

// Only the root joins the groups of commands. What they share is below them. So a command is added or removed in one
// package.
func TestCommandLine_groupsShareOnlyWhatIsBelow(t *testing.T) {
	t.Parallel()
	all := files(t)
	groups := commandGroups(t, all)
	if len(groups) < 7 {
		t.Errorf("groups of commands: %v", groups)
	}
	for _, f := range all {
		if !strings.HasPrefix(f.pkg, commandLine+"/") || strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, spec := range f.parsed.Imports {
			imported := strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module)
			switch {
			case imported == commandLine:
				t.Errorf("%s imports the root of the command line", f.path)
			case groups[imported] && !slices.Contains(commandsUsedBy[f.pkg], imported):
				t.Errorf("%s imports %s: move what both need into a package below them", f.path, imported)
			}
		}
	}
	for group := range commandsUsedBy {
		if !groups[group] {
			t.Errorf("%s has no commands", group)
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
