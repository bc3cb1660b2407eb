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

// The commands by which another cluster restores are commands, as they stand in the document: without a cluster they fail for want of one, and
// not because of how they are used.
func TestDocs_commandsOfAnotherClusterAreCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "locations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Another cluster\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commandsShown := shown.FindAllStringSubmatch(continued.ReplaceAllString(section, ""), -1)
	if !found || len(commandsShown) != 6 {
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
