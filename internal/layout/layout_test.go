package layout

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestPodNames_areDistinctLabels(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, instance := range []string{"a", "a.b", strings.Repeat("x", 63), strings.Repeat("x", 62) + "y"} {
		for _, uid := range []types.UID{"1", "2"} {
			for _, name := range []string{LauncherPod(instance, uid), MigrationPod(instance, uid, "m1"), MigrationPod(instance,
				uid, "m2"), MigrationSourcePod(instance, uid, "m1"), AttachmentPod(instance, uid, "backup-1"), AttachmentPod(instance, uid, "backup-2")} {
				if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
					t.Errorf("%q: %v", name, msgs)
				}
				if names[name] {
					t.Errorf("%q is used twice", name)
				}
				names[name] = true
			}
		}
	}
}

func TestBackupNames(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 18, 5, 6, 7, time.FixedZone("x", 3600))
	for got, want := range map[string]string{
		Checkpoint("t", at):                                         "t-2026-11-20T17:05:06Z",
		BackupDirectory("vm", "b1", at):                             "vm/b1-20261120T170506Z",
		BackupFile("vm/b1-20261120T170506Z", "root"):                "vm/b1-20261120T170506Z/root.qcow2",
		BackupUtilityVolume("0123abcd-ef00-0000-0000-000000000000"): "backup-0123abcd",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
