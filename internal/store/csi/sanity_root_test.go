//go:build root

package csi_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	driver "github.com/varvebackup/varve/internal/store/csi"
)

// The driver passes Kubernetes' own conformance tests of CSI drivers, for both kinds of volumes. They skip what it does
// not offer: attaching by a controller, growth by kubelet, lists of volumes, capacity, groups.
func TestDriver_passesCSISanity(t *testing.T) {
	program, err := filepath.Abs("../../../build/csi-sanity/bin/csi-sanity")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: run make csi-sanity", err)
	}
	for _, kind := range []string{"mount", "block"} {
		t.Run(kind, func(t *testing.T) {
			s := newStore(t)
			o := driver.Options{KubeletDir: s.dir}
			cmd := exec.CommandContext(t.Context(), program, "--csi.endpoint=unix://"+o.Socket(),
				"--csi.mountdir="+filepath.Join(s.dir, "mount"), "--csi.stagingdir="+filepath.Join(s.dir, "stage"),
				"--csi.testvolumesize=67108864", "--csi.testvolumeaccesstype="+kind, "--ginkgo.no-color")
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(" 59 Passed")) {
				t.Fatalf("%v, or fewer tests ran than the driver's capabilities ask for:\n%s", err, out)
			}
			wantNoObjects(t, s)
			if objects, err := s.disk.List(t.Context()); err != nil || len(objects) != 0 {
				t.Errorf("left on the disk: %v, %v", objects, err)
			}
		})
	}
}
