package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/layout"
)

// Exec replaces the calling process with a command inside a node: its namespaces, its root directory, and the box's
// programs at the front of PATH. It returns only on failure.
func Exec(dir layout.Box, name string, command []string) error {
	st, err := loadState(dir)
	if err != nil {
		return err
	}
	for i, n := range st.Nodes {
		if layout.NodeName(i+1) != name {
			continue
		}
		if !n.Init.Alive() {
			return fmt.Errorf("%s does not run: bring it up with `box up`", name)
		}
		nsenter, err := exec.LookPath("nsenter")
		if err != nil {
			return fmt.Errorf("enter %s: %w (Debian package util-linux)", name, err)
		}
		args := append([]string{"nsenter"}, enterArgs(n.Init.PID)...)
		env := append(withoutVariables(os.Environ(), "PATH=", "KUBECONFIG="),
			"PATH="+dir.Bin()+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"KUBECONFIG="+dir.Kubeconfig())
		if err := unix.Exec(nsenter, append(args, command...), env); err != nil {
			return fmt.Errorf("enter %s: %w", name, err)
		}
	}
	return fmt.Errorf("the box has no node %q: it has node1 to node%d", name, len(st.Nodes))
}

// withoutVariables drops the variables that have one of the prefixes: if a variable is present twice, the first one counts.
func withoutVariables(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(v, p) })
	})
}
