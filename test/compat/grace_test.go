package compat

import (
	"os"
	"strings"
	"testing"

	upstream "kubevirt.io/api/core/v1"
)

// A guest without a grace period gets the same default as upstream.
func TestGracePeriod_defaultIsUpstreams(t *testing.T) {
	t.Parallel()
	if upstream.DefaultGracePeriodSeconds != 30 {
		t.Fatalf("upstream's default is %d", upstream.DefaultGracePeriodSeconds)
	}
	for _, name := range []string{"virtualmachines", "virtualmachineinstances"} {
		crd, err := os.ReadFile("../../deploy/crd/kubevirt.io_" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, after, found := strings.Cut(string(crd), "terminationGracePeriodSeconds:\n")
		if lines := strings.SplitN(after, "\n", 2); !found || strings.TrimSpace(lines[0]) != "default: 30" {
			t.Errorf("%s: %q", name, lines[0])
		}
	}
}
