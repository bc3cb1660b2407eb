package expose

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// The notes of version 1. A driver reads what an older one has written, so neither may change.
const (
	snapshotNoteText = `{"version":1,"snapshot":"s","content":"snapcontent-s","contentUID":"c","handle":"h","driver":"d","policy":"Retain",` +
		`"bytes":128,"volumeMode":"Block","topology":{"nodeSelectorTerms":null},"sourceUID":"p","volume":{"claim":"v"}}`
	restoreNoteText = `{"version":1,"target":"t","volume":{"claim":"c","name":"pv","uid":"u","policy":"Delete"},"bound":true}`
)

func TestNote_isReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	checkNote(t, snapshotNoteText, &snapshotNote{
		Version: 1, Snapshot: "s", Content: "snapcontent-s", ContentUID: "c", Handle: "h", Driver: "d", Policy: snapshotv1.VolumeSnapshotContentRetain,
		Bytes: 128, VolumeMode: corev1.PersistentVolumeBlock, Topology: &corev1.NodeSelector{}, SourceUID: "p", Volume: volumeNote{Claim: "v"},
	})
	checkNote(t, `{"version":1,"snapshot":"s"}`, &snapshotNote{Version: 1, Snapshot: "s"})
	checkNote(t, restoreNoteText, &restoreNote{
		Version: 1, Target: "t", Volume: volumeNote{Claim: "c", Name: "pv", UID: "u", Policy: corev1.PersistentVolumeReclaimDelete}, Bound: true,
	})
	checkNote(t, `{"version":1,"target":"t"}`, &restoreNote{Version: 1, Target: "t"})
}

func checkNote[N snapshotNote | restoreNote](t *testing.T, text string, want *N) {
	t.Helper()
	written, err := json.Marshal(want)
	if err != nil || string(written) != text {
		t.Errorf("written: %s, want %s: %v", written, text, err)
	}
	o := &velerov2.DataUpload{}
	setNote(o, text)
	read, err := readNote[N](o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read); diff != "" {
		t.Error(diff)
	}
}

func TestNote_refusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{`, `{"snapshot":"s"}`, `{"version":2}`, `{"version":1,"snapshot":"s","more":1}`, `[]`} {
		o := &velerov2.DataUpload{}
		setNote(o, text)
		if note, err := readNote[snapshotNote](o); err == nil {
			t.Errorf("%s: %+v", text, note)
		}
	}
	if note, err := readNote[restoreNote](&velerov2.DataDownload{}); note != nil || err != nil {
		t.Errorf("no note: %v, %v", note, err)
	}
}
