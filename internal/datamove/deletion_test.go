package datamove

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var testPoint = strings.Repeat("0a", 16)

func TestDeletionJob_isReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	job := DeletionJob{Version: DeletionVersion, Repository: "aa", Points: []PointToDelete{{ID: testPoint, Backup: "b", BackupUID: "u"}}}
	got, err := DecodeDeletionJob(job.Encode())
	if err != nil || !cmp.Equal(got, job) {
		t.Errorf("%+v %v", got, err)
	}
	for name, text := range map[string]string{
		"a later version": strings.Replace(job.Encode(), `"version":1`, `"version":2`, 1),
		"an unknown word": strings.Replace(job.Encode(), `"version"`, `"force":true,"version"`, 1),
		"no repository":   DeletionJob{Points: job.Points}.Encode(),
		"no points":       DeletionJob{Repository: "aa"}.Encode(),
		"a path":          DeletionJob{Repository: "aa", Points: []PointToDelete{{ID: "../x"}}}.Encode(),
		"too many":        DeletionJob{Repository: "aa", Points: make([]PointToDelete, DeletionLimit+1)}.Encode(),
	} {
		if _, err := DecodeDeletionJob(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A kubelet keeps 4096 bytes.
func TestDeletionReport_fitsIntoATerminationMessage(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	r := DeletionReport{Version: DeletionVersion, Kept: map[string]Kept{}}
	for i := range DeletionLimit {
		r.Kept[testPoint[:30]+string([]byte{'a' + byte(i/6), '0' + byte(i%6)})] = Kept{Why: KeptLocked, Until: &until}
	}
	text := r.Encode()
	if len(text) > 4096 || len(r.Kept) != DeletionLimit {
		t.Errorf("%d bytes for %d", len(text), len(r.Kept))
	}
	if got, err := DecodeDeletionReport(text); err != nil || !cmp.Equal(got, r) {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"", "panic: x", `{"version":2}`} {
		if _, err := DecodeDeletionReport(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestPointDeletionOf_readsItsOwnAlone(t *testing.T) {
	t.Parallel()
	d := PointDeletion{Version: DeletionVersion, UID: "u1", State: DeletionDone, Message: "m", Tries: 2}
	upload := &metav1.ObjectMeta{UID: "u1", Annotations: map[string]string{AnnotationPointDeletion: d.Encode()}}
	if got := PointDeletionOf(upload); !cmp.Equal(got, d) || !got.Over() {
		t.Errorf("%+v", got)
	}
	upload.UID = "u2" // a copy of the DataUpload, with its annotations
	if got := PointDeletionOf(upload); got.Over() {
		t.Errorf("a copy: %+v", got)
	}
	for _, bad := range []string{"", "true", `{"version":9,"uid":"u2","state":"Done"}`} {
		upload.Annotations[AnnotationPointDeletion] = bad
		if got := PointDeletionOf(upload); got.Over() {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestLocationPrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "cluster-a", "a/b", "plugins/varve"} {
		want := prefix
		if want != "" {
			want += "/"
		}
		if got, ok := LocationPrefix(RepositoryPrefix(prefix, "shop")); !ok || got != want {
			t.Errorf("%q: %q %v", prefix, got, ok)
		}
	}
	for _, other := range []string{"", "/", "plugins/varve/", "x/plugins/other/shop/", "myplugins/varve/shop/", "shop/"} {
		if got, ok := LocationPrefix(other); ok {
			t.Errorf("%q: %q", other, got)
		}
	}
}

func TestBackupLabel_isVelerosOwn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 70)
	// label.GetValidName of Velero 1.18.
	for name, want := range map[string]string{"monday": "monday", strings.Repeat("b", 63): strings.Repeat("b", 63), long: strings.Repeat("a", 57) + "6bd5e5"} {
		got := BackupLabel(name)
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if !strings.HasPrefix(name, BackupStem(got)) {
			t.Errorf("%s does not begin with %s", name, BackupStem(got))
		}
	}
}
