package virtualmachineinstance

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// The names, commands and times are those of KubeVirt's pkg/storage/pod/annotations.
func TestFreezeHooks_areKubeVirts(t *testing.T) {
	t.Parallel()
	instance := smallInput().Instance
	want := map[string]string{
		"pre.hook.backup.velero.io/container":  "compute",
		"pre.hook.backup.velero.io/command":    `["/usr/bin/virt-freezer","--freeze","--name","vm","--namespace","ns"]`,
		"pre.hook.backup.velero.io/timeout":    "60s",
		"post.hook.backup.velero.io/container": "compute",
		"post.hook.backup.velero.io/command":   `["/usr/bin/virt-freezer","--unfreeze","--name","vm","--namespace","ns"]`,
		"post.hook.backup.velero.io/timeout":   "60s",
	}
	got := freezeHooks(instance, nil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	in := smallInput()
	in.Configuration = &kubevirtv1.KubeVirt{}
	if diff := cmp.Diff(want, launcherPod(in).Annotations); diff != "" {
		t.Errorf("the pod: %s", diff)
	}
}

func TestFreezeHooks_canBeSwitchedOff(t *testing.T) {
	t.Parallel()
	const unset = "unset"
	for _, test := range []struct {
		instance, configuration string
		hooks                   bool
	}{
		{unset, unset, true},
		{"true", unset, false},
		{unset, "true", false},
		{"false", "true", true},
		{"true", "false", false},
		{"1", unset, false},
		{"yes", unset, true},
		{"", "true", true},
	} {
		in := smallInput()
		in.Configuration = &kubevirtv1.KubeVirt{}
		if test.instance != unset {
			in.Instance.Annotations = map[string]string{annotationSkipHooks: test.instance}
		}
		if test.configuration != unset {
			in.Configuration.Annotations = map[string]string{annotationSkipHooks: test.configuration}
		}
		if got := len(launcherPod(in).Annotations) > 0; got != test.hooks {
			t.Errorf("%+v: hooks %v", test, got)
		}
	}
}
