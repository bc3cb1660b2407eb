package deploy_test

import (
	"strings"
	"testing"
)

// Whoever installs Varve with Helm reads what install.sh says: what is on and off beside KubeVirt, and whose kinds stay.
func TestChart_saysWhatInstallSays(t *testing.T) {
	t.Parallel()
	notes := readText(t, "chart/templates/NOTES.txt")
	starts := []string{"on: ", "off: ", "this cluster has Velero", "this cluster has Harvester", "this cluster has Longhorn"}
	said := 0
	for line := range strings.Lines(readText(t, "install.sh")) {
		_, words, ok := strings.Cut(line, `echo "install: `)
		if !ok {
			continue
		}
		words, _, _ = strings.Cut(words, `"`)
		for _, start := range starts {
			if !strings.HasPrefix(words, start) {
				continue
			}
			said++
			if !strings.Contains(strings.ToLower(notes), strings.ToLower(words)) {
				t.Errorf("the chart's notes do not say %q", words)
			}
		}
	}
	if said != len(starts) {
		t.Errorf("install.sh says %d of these lines, want %d", said, len(starts))
	}
}
