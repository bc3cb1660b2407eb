package image

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/progress"
)

func TestNewBackup(t *testing.T) {
	t.Parallel()
	if b := newBackup("varve", "golden", "", "s3"); b.Name != "" || b.GenerateName != "golden-" ||
		b.Spec.BackingImage != "golden" || b.Spec.BackupTargetName != "s3" || b.Namespace != "varve" {
		t.Errorf("%+v", b)
	}
	if b := newBackup("varve", "golden", "monday", ""); b.Name != "monday" || b.GenerateName != "" {
		t.Errorf("%+v", b)
	}
}

func TestUntilStored(t *testing.T) {
	t.Parallel()
	stored := func(edit func(*longhornv1.BackupBackingImage)) *longhornv1.BackupBackingImage {
		b := newBackup("varve", "golden", "monday", "")
		b.UID = "b1"
		edit(b)
		return b
	}
	for name, c := range map[string]struct {
		then  *longhornv1.BackupBackingImage
		fails string
	}{
		"complete": {stored(func(b *longhornv1.BackupBackingImage) { b.Status.State = longhornv1.BackupCompleted }), ""},
		"failed": {stored(func(b *longhornv1.BackupBackingImage) {
			b.Status.State, b.Status.Error = longhornv1.BackupError, "the bucket is full"
		}), "image backup monday failed: the bucket is full"},
		"made again": {stored(func(b *longhornv1.BackupBackingImage) { b.UID = "b2" }), "was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stored(func(b *longhornv1.BackupBackingImage) { b.Status.Message = "the image is not ready" })
			cluster := newClient(t, interceptor.Funcs{
				Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
					w := watch.NewFakeWithChanSize(1, false)
					w.Modify(c.then)
					return w, nil
				},
			}, b)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var shown []string
			err := untilStored(cluster, b)(ctx, func(r progress.Report) { shown = append(shown, r.Phase+" "+r.Message) })
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%v, want %q", err, c.fails)
			}
			if len(shown) == 0 || shown[0] != "Pending 0% the image is not ready" {
				t.Errorf("it shows %q", shown)
			}
		})
	}
}

func TestRequest_findImageBackup(t *testing.T) {
	t.Parallel()
	const sum = "7d793037a0760186574b0282f2f435e7a2c5b0e0d9d3cf7e8d1b5a1e1b1f1d5b"
	monday := newBackup("varve", "golden", "monday", "")
	monday.Status = longhornv1.BackupBackingImageStatus{
		State: longhornv1.BackupCompleted, Location: "s3", SnapshotID: snapshotID, Checksum: strings.Repeat("ab", 64),
	}
	going := monday.DeepCopy()
	now := metav1.Now()
	going.Name, going.DeletionTimestamp, going.Finalizers = "going", &now, []string{"longhorn.io"}
	client := newClient(t, interceptor.Funcs{}, monday, going, newBackup("varve", "golden", "new", ""))
	for name, c := range map[string]struct{ backup, checksum, want, says string }{
		"its checksum":     {backup: "monday", want: monday.Status.Checksum},
		"another checksum": {backup: "monday", checksum: sum, want: sum},
		"not stored yet":   {backup: "new", says: "image backup new has no restore point (it has not begun)"},
		"being deleted":    {backup: "going", says: "has no restore point"},
		"no such backup":   {backup: "none", says: "get image backup varve/none"},
	} {
		r := request{fromImageBackup: c.backup, wishes: wishes{checksum: c.checksum, copies: 1}}
		b, err := r.newObject("again")
		if err != nil {
			t.Fatal(err)
		}
		b.Namespace = "varve"
		err = r.findPoint(t.Context(), client, b)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || b.Spec.Checksum != c.want || b.Spec.SourceType != longhornv1.SourceRestore ||
			string(b.Spec.SourceParameters[longhornv1.ParameterSnapshotID]) != snapshotID ||
			b.Spec.SourceParameters[longhornv1.ParameterLocation] != "s3":
			t.Errorf("%s: %+v, %v", name, b.Spec, err)
		}
	}
}
