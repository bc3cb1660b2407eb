//go:build controlplane

package expose

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
)

var keepTests = map[string]func(*world){
	"the snapshot of an upload that has succeeded": keepsSnapshot,
	"whatever else":          keepsNothingElse,
	"a crash before a write": func(w *world) { crashKept(w, false) },
	"a crash after a write":  func(w *world) { crashKept(w, true) },
}

// keeping makes the settings keep snapshots, and a driver that can use them.
func (w *world) keeping() {
	w.announce(serviceSpec("PEM"))
	w.options.Classes = map[string]Class{w.className("immediate"): {KeepSnapshot: true}}
}

// report leaves a mover's report on an upload.
func (w *world) report(u *upload, outcome datamove.Outcome, form datamove.Form) {
	w.Helper()
	report := datamove.Report{Outcome: outcome, Pod: "pod", SnapshotID: datamove.SnapshotID{Form: form, Point: strings.Repeat("ab", 16), Namespace: w.ns}.String()}
	w.edit(u.DataUpload, func() { metav1.SetMetaDataAnnotation(&u.ObjectMeta, datamove.AnnotationReport, report.Encode()) })
}

// wantKept fails the test unless the snapshot is there with one content that has the policy Delete, and with nothing else.
func (w *world) wantKept(u *upload) {
	w.Helper()
	snapshot, content := u.childSnapshot(), u.childContent()
	w.read(snapshot)
	w.read(content)
	want := datamove.KeptSnapshot{
		Upload: client.ObjectKeyFromObject(u.DataUpload), UploadUID: u.UID, Claim: types.NamespacedName{Namespace: w.ns, Name: "data"}, ClaimUID: u.claim.UID,
		StorageClass: w.className("immediate"), Driver: w.storage.driver,
		Repository: datamove.RepositoryName(w.ns, datamove.Location{Namespace: w.ns, Name: "default"}),
	}
	got, err := datamove.DecodeKeptSnapshot(snapshot.Annotations[datamove.AnnotationKeptSnapshot])
	if diff := cmp.Diff(want, got); diff != "" || err != nil || snapshot.Labels[datamove.LabelKeptSnapshot] != want.Key() {
		w.Errorf("%s, %v, %v", diff, err, snapshot.Labels)
	}
	if got := w.contentsOf(); got[policyDelete] != 1 || got[policyRetain] != 0 || len(w.storage.snapshots) != 1 {
		w.Errorf("contents %v of snapshots %v", got, w.storage.snapshots)
	}
	if content.Spec.VolumeSnapshotRef.UID != snapshot.UID {
		w.Errorf("the content belongs to %v", content.Spec.VolumeSnapshotRef)
	}
	for _, o := range []client.Object{u.childClaim(), u.source, u.content} {
		if w.exists(o) {
			w.Errorf("%s is left", describe(o))
		}
	}
	if len(w.volumes()) != 1 {
		w.Errorf("%d volumes are left", len(w.volumes()))
	}
}

func keepsSnapshot(w *world) {
	w.keeping()
	u := w.blockUpload()
	w.exposed(u)
	w.report(u, datamove.Succeeded, datamove.Disk)
	w.disposed(u)
	w.wantKept(u)
	kept := u.childSnapshot()
	w.read(kept)
	w.disposed(u) // its phase could not be written
	again := u.childSnapshot()
	w.read(again)
	w.same("version", again.ResourceVersion, kept.ResourceVersion)
	// What the controller does.
	w.delete(again)
	w.settle()
	w.nothingLeft(u)
}

func keepsNothingElse(w *world) {
	for name, c := range map[string]struct {
		files bool
		edit  func(*world, *upload)
	}{
		"failed":   {edit: func(w *world, u *upload) { w.report(u, datamove.Failed, datamove.Disk) }},
		"canceled": {edit: func(w *world, u *upload) { w.edit(u.DataUpload, func() { u.Spec.Cancel = true }) }},
		"no report": {edit: func(w *world, u *upload) {
			w.edit(u.DataUpload, func() { delete(u.Annotations, datamove.AnnotationReport) })
		}},
		"stored as files":    {edit: func(w *world, u *upload) { w.report(u, datamove.Succeeded, datamove.Files) }},
		"the setting is off": {edit: func(w *world, _ *upload) { w.options.Classes = nil }},
		"of another class":   {edit: func(w *world, _ *upload) { w.options.Classes = map[string]Class{"other": {KeepSnapshot: true}} }},
		"nobody could count from it": {edit: func(w *world, _ *upload) {
			w.options.Classes = map[string]Class{w.className("immediate"): {KeepSnapshot: true, ReadWhole: true}}
		}},
		"its deletion would leave it on the storage": {edit: func(w *world, u *upload) {
			content := u.childContent()
			w.edit(content, func() { content.Spec.DeletionPolicy = policyRetain })
		}},
		"nobody knows the claim": {edit: func(w *world, u *upload) {
			w.edit(u.DataUpload, func() {
				note := u.Annotations[datamove.AnnotationExposed]
				u.Annotations[datamove.AnnotationExposed] = strings.Replace(note, `"sourceUID":"`+string(u.claim.UID)+`",`, "", 1)
				if u.Annotations[datamove.AnnotationExposed] == note {
					w.Fatal(note)
				}
			})
		}},
		"a Filesystem volume": {files: true, edit: func(*world, *upload) {}},
		"deleted": {edit: func(w *world, u *upload) {
			w.edit(u.DataUpload, func() { u.Finalizers = []string{datamove.Finalizer} })
			w.delete(u.DataUpload)
			w.read(u.DataUpload)
		}},
	} {
		sub := newWorld(w.T)
		sub.keeping()
		makeUpload := sub.blockUpload
		if c.files {
			makeUpload = func() *upload { return sub.upload(policyDelete) }
		}
		u := makeUpload()
		sub.exposed(u)
		sub.report(u, datamove.Succeeded, datamove.Disk)
		c.edit(sub, u)
		sub.disposed(u)
		sub.nothingLeft(u)
		if sub.Failed() {
			w.Fatal(name)
		}
	}
}

// crashKept kills the driver at every write of an upload whose snapshot is kept. Its successor keeps it, once and
// whole.
func crashKept(w *world, answerLost bool) {
	atEveryWrite(w, answerLost, func(w *world, writer *dyingWriter) {
		w.keeping()
		u := w.blockUpload()
		writer.after = func() {
			w.contentsOf()
			if answerLost {
				w.settle()
			}
		}
		w.writer = writer
		ctx := w.Context()
		expose := func() (bool, error) {
			exposure, err := w.csi().Expose(ctx, u.DataUpload)
			return exposure.Volume != nil, err
		}
		move := func() (bool, error) { w.report(u, datamove.Succeeded, datamove.Disk); return true, nil }
		dispose := func() (bool, error) {
			p, err := w.csi().Dispose(ctx, u.DataUpload)
			if p.Done && len(w.storage.snapshots) != 1 {
				return false, fmt.Errorf("done, and there are %d snapshots", len(w.storage.snapshots))
			}
			return p.Done, err
		}
		w.untilCrash(expose, move, dispose)
		w.writer = &dyingWriter{Writer: w.driver, after: writer.after}
		w.readAgain(u.DataUpload)
		if u.Annotations[datamove.AnnotationReport] == "" {
			w.untilCrash(expose, move)
		}
		w.untilCrash(dispose)
		w.settle()
		w.wantKept(u)
		snapshot := u.childSnapshot()
		w.read(snapshot)
		w.delete(snapshot)
		w.settle()
		w.nothingLeft(u)
	})
}
