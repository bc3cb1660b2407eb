//go:build root

package repository

import (
	"os"
	"os/exec"
	"testing"
)

// The root of a pod's file system may be read-only.
func TestOpenLocation_withAReadOnlyRoot(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := `mount -t tmpfs tmpfs "$1" && mount --bind / / && mount -o remount,bind,ro / && cd / &&
if touch /written 2>/dev/null; then echo "the root is not read-only"; exit 1; fi &&
TMPDIR="$1" GOTMPDIR="$1" exec "$0" -test.run '^TestOpenLocation_needsNoFiles$'`
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, exe, dir).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
