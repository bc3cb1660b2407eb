package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var (
	continued = regexp.MustCompile(`\\\n\s*`)
	// shown is a command in a document: it is indented, may be commented, and may write to a file.
	shown = regexp.MustCompile(`(?m)^    (varve .*?)( > \S+)?(\s+#.*)?$`)
)

func TestDocs_commandsOfAnotherClusterAreCommands(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readDocument(t, "locations.md"), "\n## Another cluster\n")
	section, _, _ = strings.Cut(section, "\n## ")
	runWithoutCluster(t, section, 6)
}

func TestDocs_commandsOfSchedulesAreCommands(t *testing.T) {
	t.Parallel()
	runWithoutCluster(t, readDocument(t, "schedules.md"), 17)
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// runWithoutCluster runs the commands of a text as they stand there, which are so many: without a cluster they fail
// for want of one, and not because of how they are used.
func runWithoutCluster(t *testing.T, text string, want int) {
	t.Helper()
	commandsShown := shown.FindAllStringSubmatch(continued.ReplaceAllString(text, ""), -1)
	if len(commandsShown) != want {
		t.Fatalf("%d commands: %q", len(commandsShown), commandsShown)
	}
	var script strings.Builder
	for _, c := range commandsShown {
		fmt.Fprintf(&script, "code 6 %s\nstderr 'cluster'\n", c[1])
	}
	script.WriteString("-- default.password --\nsecret\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docs.txt"), []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: dir, Cmds: commands, Setup: func(env *testscript.Env) error {
		env.Setenv("KUBECONFIG", env.WorkDir+"/none")
		env.Setenv("AWS_ACCESS_KEY_ID", "A")
		env.Setenv("AWS_SECRET_ACCESS_KEY", "B")
		return nil
	}})
}
