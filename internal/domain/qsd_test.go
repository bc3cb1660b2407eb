package domain

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A qemu-storage-daemon does not exit with its monitor, and one that fails says why on its standard error.
func TestStorageDaemonJob_saysWhyItFailed(t *testing.T) {
	const greeting = `read -r line; echo '{"QMP": {}}'; echo '{"return": {}}'; read -r line; `
	for name, c := range map[string]struct{ script, want string }{
		"refused":                          {greeting + `echo '{"error": {"class": "GenericError", "desc": "no such node"}}'; exec sleep 600`, "blockdev-create: no such node"},
		"ended":                            {greeting + `echo "out of memory" >&2; exit 1`, "out of memory"},
		"ended in the middle of a message": {greeting + `printf '{"return": '; echo "out of memory" >&2; exit 1`, "out of memory"},
		"ended at once":                    {`exec 0<&-; echo "bad option" >&2; exit 1`, "bad option"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "qemu-storage-daemon"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // only a daemon that nobody ends takes this long
		err := storageDaemonJob(ctx, os.Stdin, nil, map[string]any{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "deadline") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
