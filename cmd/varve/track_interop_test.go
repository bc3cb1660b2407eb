//go:build nbd_interop

package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/varvebackup/varve/test/verdict"
)

// Scripts about bitmaps in qcow2 images have everything that those about repositories have, and this command:
//
//	same NAME[:DISK] IMAGE   compares a disk of the latest restore point of NAME with the image, byte for byte
func TestTrack(t *testing.T) {
	t.Parallel()
	all := maps.Clone(commands)
	all["same"] = sameAsImage
	testscript.Run(t, testscript.Params{Dir: "testdata/track", Cmds: all, Setup: func(env *testscript.Env) error {
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		return os.WriteFile(filepath.Join(env.WorkDir, "password"), []byte("secret of this test\n"), 0o600)
	}})
}

func sameAsImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same NAME[:DISK] IMAGE")
	}
	out := ts.MkAbs("restored.img")
	name, disk, _ := strings.Cut(args[0], ":")
	ts.Check(ts.Exec("sh", "-c", `exec varve disk restore --overwrite --progress none --disk "$2" $(varve disk list "$0" -o name | tail -1) "$1"`, name, out, disk))
	if err := ts.Exec("qemu-img", "compare", "-f", "raw", "-F", "qcow2", out, args[1]); verdict.Differ(err) {
		ts.Fatalf(verdict.Mark+"%s and %s differ: %v", args[0], args[1], err)
	} else {
		ts.Check(err)
	}
}
