package datamove

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNote_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	since := metav1.NewTime(time.Unix(1_700_000_000, 0))
	for _, n := range []Note{{Pod: "p"}, {Pod: "p", Waiting: "for \"it\"", Since: since}} {
		if got, err := DecodeNote(n.Encode()); err != nil || !cmp.Equal(got, n) {
			t.Errorf("%v: %s", err, cmp.Diff(got, n))
		}
	}
	if n, err := DecodeNote(`{"pod":"p","waiting":"w","surprise":1}`); err != nil || n.Pod != "p" || n.Waiting != "w" {
		t.Errorf("%v, %v", n, err)
	}
}

func FuzzDecodeNote(f *testing.F) {
	f.Add(Note{Pod: "p", Waiting: "w", Since: metav1.NewTime(time.Unix(1_700_000_000, 0))}.Encode())
	f.Fuzz(func(t *testing.T, text string) {
		n, err := DecodeNote(text)
		if err != nil {
			return
		}
		if again, err := DecodeNote(n.Encode()); err != nil || again.Encode() != n.Encode() {
			t.Errorf("decoded once more: %v, %v", again, err)
		}
	})
}

func TestReport_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	for _, r := range []Report{
		{Outcome: Succeeded, Pod: "p", SnapshotID: "s", TotalBytes: 3, IncrementalBytes: 2, StoredBytes: 1, FullReason: "DiskReplaced"},
		{Outcome: Failed, Pod: "p", Message: "it \"failed\"\n"},
		{Outcome: Canceled, Pod: "p"},
	} {
		if got, err := DecodeReport(r.Encode()); err != nil || got != r {
			t.Errorf("%v: %s", err, cmp.Diff(got, r))
		}
	}
}

func TestDecodeReport_ofANewerPod(t *testing.T) {
	t.Parallel()
	if r, err := DecodeReport(`{"outcome":"Succeeded","pod":"p","surprise":1}`); err != nil || r.Outcome != Succeeded || r.Pod != "p" {
		t.Errorf("%v, %v", r, err)
	}
	for _, text := range []string{"", "{}", `{"outcome":"Done"}`, `{"outcome":1}`, "null"} {
		if r, err := DecodeReport(text); err == nil {
			t.Errorf("%q is %v", text, r)
		}
	}
}

func FuzzDecodeReport(f *testing.F) {
	f.Add(Report{Outcome: Failed, Message: "x", Pod: "p"}.Encode())
	f.Add(`{"outcome":"Canceled","surprise":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := DecodeReport(text)
		if err != nil {
			return
		}
		if again, err := DecodeReport(r.Encode()); err != nil || again != r {
			t.Errorf("decoded once more: %v, %v", again, err)
		}
	})
}
