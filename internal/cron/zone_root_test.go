//go:build root

package cron

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// emptyRoot names the directory that the process of a test makes its root.
const emptyRoot = "VARVE_EMPTY_ROOT"

// An image of Varve has no database of time zones.
func TestParse_zonesWithoutADatabaseOfTheMachine(t *testing.T) {
	t.Parallel()
	root := os.Getenv(emptyRoot)
	if root == "" {
		command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		command.Env = []string{emptyRoot + "=" + t.TempDir()}
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("in an empty root: %v\n%s", err, out)
		}
		return
	}
	if err := syscall.Chroot(root); err != nil {
		t.Fatal(err)
	}
	for _, zone := range []string{"Europe/Berlin", "Pacific/Apia", "Asia/Kathmandu"} {
		mustParse(t, "0 1 * * *", zone).Next(time.Unix(0, 0))
	}
}
