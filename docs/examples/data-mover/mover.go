// Command data-mover is an example of a data mover that Velero drives. docs/data-movers.md explains it.
//
// mover.go is what every mover does with the objects. volumes.go is this one's way to reach volumes and to keep them, which is as
// simple as can be: the CSI driver of its one node has a directory for each snapshot, and the mover keeps copies of those.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	moverName = "example"                // velero backup create --snapshot-move-data --data-mover example
	finalizer = "example.com/data-mover" // on objects for which the mover has something that it must remove
	upload    = "DataUpload"
)

// mover serves the DataUploads and the DataDownloads that name it.
type mover struct {
	client.Client

	node      string // where it runs
	snapshots string // has a directory for each snapshot, named like the snapshot's handle
	store     string // gets a directory for each DataUpload, named like its UID
	volumes   string // gets a directory for each DataDownload, named like its UID
}

// serve takes an object one step further. It is called for each change of the object, and again after an error. The object is not
// decoded into a Go type, because an update of such a type drops the fields that a newer Velero has added.
func (m *mover) serve(ctx context.Context, o *unstructured.Unstructured) (reconcile.Result, error) {
	phase, takenBy := text(o, "status", "phase"), text(o, "status", "acceptedByNode")
	switch {
	case text(o, "spec", "datamover") != moverName, takenBy != "" && takenBy != m.node:
		return reconcile.Result{}, nil // It is another mover's ("" and "velero" are Velero's own), or another node's.
	case phase == "Completed" || phase == "Failed" || phase == "Canceled":
		return reconcile.Result{}, m.forget(ctx, o)
	case cancelled(o): // Also if nobody has taken it: Velero gives up after a time of its own and leaves the snapshot to the mover.
		return reconcile.Result{}, m.end(ctx, o, "Canceled", nil)
	case takenBy == "":
		controllerutil.AddFinalizer(o, finalizer)
		return reconcile.Result{}, m.enter(ctx, o, "Accepted", fields{"acceptedByNode": m.node, "acceptedTimestamp": now()})
	}
	err := m.advance(ctx, o, phase)
	var wait waiting
	switch {
	case errors.As(err, &wait) && time.Now().Before(wait.since.Add(operationTimeout(o))):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case errors.As(err, &wait), errors.As(err, new(lasting)):
		return reconcile.Result{}, m.end(ctx, o, "Failed", fields{"message": err.Error()})
	default:
		return reconcile.Result{}, err
	}
}

// advance does what the phase of a taken object asks for. A mover that was restarted goes on here.
func (m *mover) advance(ctx context.Context, o *unstructured.Unstructured, phase string) error {
	from, to, err := m.expose(ctx, o)
	if err != nil {
		return err
	}
	switch phase {
	case "Accepted":
		return m.enter(ctx, o, "Prepared", fields{"node": m.node})
	case "Prepared":
		return m.enter(ctx, o, "InProgress", fields{"startTimestamp": now()})
	}
	total := size(from)
	err = copyTree(ctx, from, to, func(done int64) (stop bool) {
		// The answer to the patch is the object as it is now. A report that gets lost does no harm.
		return m.report(ctx, o, total, done) == nil && cancelled(o)
	})
	if err != nil || cancelled(o) {
		return err // serve is called for the cancellation, too.
	}
	result := fields{"progress": fields{"totalBytes": size(to), "bytesDone": size(to)}}
	if o.GetKind() == upload {
		result["snapshotID"] = filepath.Base(to) // All that a DataDownload gets to know.
	} else if err := m.giveToClaim(ctx, o, to); err != nil {
		return err
	}
	return m.end(ctx, o, "Completed", result)
}

// enter writes a phase. The API server refuses the update if anybody has changed the object since it was read. By that lock one of
// several movers takes an object, and by that lock no phase hides a cancellation.
func (m *mover) enter(ctx context.Context, o *unstructured.Unstructured, phase string, more fields) error {
	status, _ := o.Object["status"].(map[string]any)
	if status == nil {
		status = fields{}
	}
	maps.Copy(status, more)
	status["phase"] = phase
	o.Object["status"] = status
	return m.Update(ctx, o)
}

// end removes what is left of an object and writes its last phase after that, because nobody looks at the object afterwards. What stays
// is the data of a completed DataUpload, and for this the finalizer.
func (m *mover) end(ctx context.Context, o *unstructured.Unstructured, phase string, more fields) error {
	kept := phase == "Completed"
	if o.GetKind() == upload {
		if err := m.disposeOfSnapshot(ctx, o); err != nil {
			return err
		}
	}
	if !kept {
		if err := m.removeData(ctx, o); err != nil {
			return err
		}
	}
	if !kept || o.GetKind() != upload {
		controllerutil.RemoveFinalizer(o, finalizer)
	}
	status := fields{"completionTimestamp": now()}
	maps.Copy(status, more)
	return m.enter(ctx, o, phase, status)
}

// forget removes the data of a completed DataUpload that was deleted. Velero deletes the DataUploads of a backup with the backup.
func (m *mover) forget(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetDeletionTimestamp() == nil || !controllerutil.RemoveFinalizer(o, finalizer) {
		return nil
	}
	if err := m.removeData(ctx, o); err != nil {
		return err
	}
	return m.Update(ctx, o)
}

// report writes how many bytes were copied, and reads the object.
func (m *mover) report(ctx context.Context, o *unstructured.Unstructured, total, done int64) error {
	patch, err := json.Marshal(fields{"status": fields{"progress": fields{"totalBytes": total, "bytesDone": done}}})
	if err != nil {
		return err
	}
	return m.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}
