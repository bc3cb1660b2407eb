//go:build controlplane

package expose

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Half of them die just before a write, and half just after one, when everybody else has already acted on it.
var crashTests = map[string]func(*world){
	"upload, Delete":              func(w *world) { crashUpload(w, policyDelete, false, false) },
	"upload, Retain":              func(w *world) { crashUpload(w, policyRetain, false, true) },
	"upload, then cancelled":      func(w *world) { crashUpload(w, policyDelete, true, true) },
	"upload, Retain, cancelled":   func(w *world) { crashUpload(w, policyRetain, true, false) },
	"download, Delete":            func(w *world) { crashDownload(w, corev1.PersistentVolumeReclaimDelete, false, false) },
	"download, Retain":            func(w *world) { crashDownload(w, corev1.PersistentVolumeReclaimRetain, false, true) },
	"download, then cancelled":    func(w *world) { crashDownload(w, corev1.PersistentVolumeReclaimDelete, true, true) },
	"download, Retain, cancelled": func(w *world) { crashDownload(w, corev1.PersistentVolumeReclaimRetain, true, false) },
}

var errCrash = errors.New("the process has died")

// dyingWriter writes as the driver does, and fails at the write with the number last and at all that follow, as if
// the process had died before that write, or, if answerLost, just after it. after is called after each write.
type dyingWriter struct {
	client.Writer
	written, last int
	answerLost    bool
	after         func()
}

func (d *dyingWriter) write(do func() error) error {
	d.written++
	if d.last != 0 && d.written > d.last || d.written == d.last && !d.answerLost {
		return errCrash
	}
	if err := do(); err != nil {
		return err
	}
	d.after()
	if d.written == d.last {
		return errCrash
	}
	return nil
}

func (d *dyingWriter) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return d.write(func() error { return d.Writer.Create(ctx, o, options...) })
}

func (d *dyingWriter) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return d.write(func() error { return d.Writer.Delete(ctx, o, options...) })
}

func (d *dyingWriter) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	return d.write(func() error { return d.Writer.Patch(ctx, o, patch, options...) })
}

// atEveryWrite calls run with a writer that dies at its first write, at its second and so on, until run needs no more.
func atEveryWrite(w *world, answerLost bool, run func(sub *world, writer *dyingWriter)) {
	for last := 1; ; last++ {
		sub := newWorld(w.T)
		writer := &dyingWriter{Writer: sub.driver, last: last, answerLost: answerLost, after: func() {}}
		run(sub, writer)
		if sub.Failed() {
			w.Fatalf("after the crash at write %d (answer lost: %t)", last, answerLost)
		}
		if writer.written < last {
			if last < 6 {
				w.Fatalf("only %d writes", writer.written)
			}
			return
		}
	}
}

// untilCrash calls steps one after the other, each until it is done, and reports whether one of them crashed.
func (w *world) untilCrash(calls ...func() (done bool, err error)) (crashed bool) {
	w.Helper()
	for _, call := range calls {
		for i := 0; ; i++ {
			done, err := call()
			if errors.Is(err, errCrash) {
				return true
			}
			if err != nil {
				w.Fatal(err)
			}
			if done {
				break
			}
			if i == w.steps() {
				w.Fatal("not done")
			}
			w.settle()
		}
	}
	return false
}

func crashUpload(w *world, policy snapshotv1.DeletionPolicy, cancelled, answerLost bool) {
	atEveryWrite(w, answerLost, func(w *world, writer *dyingWriter) {
		w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
		u := w.upload(policy, func(u *upload) { u.Spec.CSISnapshot.StorageClass = w.className("retain") })
		writer.after = func() {
			w.contentsOf()
			if answerLost { // everybody else acts between any two writes
				w.settle()
			}
		}
		w.writer = writer
		ctx := w.Context()
		expose := func() (bool, error) {
			exposure, err := w.csi().Expose(ctx, u.DataUpload)
			if exposure.Volume != nil && len(w.storage.snapshots) != 1 {
				return false, fmt.Errorf("a pod may be made, and there are %d snapshots", len(w.storage.snapshots))
			}
			return exposure.Volume != nil, err
		}
		moved := false
		finish := func() (bool, error) {
			p, err := w.csi().Finish(ctx, u.DataUpload)
			moved = p.Done
			return p.Done, err
		}
		dispose := func() (bool, error) { p, err := w.csi().Dispose(ctx, u.DataUpload); return p.Done, err }
		w.untilCrash(expose, finish, dispose)
		w.writer = &dyingWriter{Writer: w.driver, after: writer.after}
		w.readAgain(u.DataUpload)
		if cancelled || moved {
			w.untilCrash(dispose)
		} else {
			w.untilCrash(expose, finish, dispose)
		}
		w.nothingLeft(u)
	})
}

func crashDownload(w *world, policy corev1.PersistentVolumeReclaimPolicy, cancelled, answerLost bool) {
	atEveryWrite(w, answerLost, func(w *world, writer *dyingWriter) {
		w.class("class", storagev1.VolumeBindingImmediate, policy)
		d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("class")) })
		writer.after = func() {
			if answerLost {
				w.settle()
			}
		}
		w.writer = writer
		ctx := w.Context()
		filled := false
		expose := func() (bool, error) {
			exposure, err := w.restore().Expose(ctx, d.DataDownload)
			filled = filled || exposure.Volume != nil
			return exposure.Volume != nil, err
		}
		finish := func() (bool, error) { p, err := w.restore().Finish(ctx, d.DataDownload); return p.Done, err }
		dispose := func() (bool, error) { p, err := w.restore().Dispose(ctx, d.DataDownload); return p.Done, err }
		w.untilCrash(expose, finish, dispose)
		w.writer = &dyingWriter{Writer: w.driver, after: writer.after}
		w.readAgain(d.DataDownload)
		switch {
		case !cancelled && filled:
			w.untilCrash(finish, dispose)
		case !cancelled:
			w.untilCrash(expose, finish, dispose)
		default:
			w.untilCrash(dispose)
			w.settle()
			w.read(d.target)
			if d.target.Spec.VolumeName == "" {
				w.nothingRestored(d)
				return
			}
		}
		w.targetHas(d, policy)
	})
}

// readAgain reads an object as another process does, which knows its name alone.
func (w *world) readAgain(o client.Object) {
	w.Helper()
	o.SetAnnotations(nil)
	o.SetResourceVersion("")
	w.read(o)
}
