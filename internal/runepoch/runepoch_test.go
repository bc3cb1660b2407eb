package runepoch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/layout"
)

func claim(annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "root", UID: "c1", Annotations: annotations}}
}

func TestEpoch_eachRunKnowsTheOneBefore(t *testing.T) {
	t.Parallel()
	c := claim(nil)
	before := ""
	for _, run := range []string{"a", "b", "b", "a"} {
		e, err := Of(c)
		if err != nil {
			t.Fatal(err)
		}
		if e.Run != run { // repeating a run is not a new run
			before = e.Run
		}
		next := e.Begin(run)
		if next.Run != run || next.Previous != before {
			t.Errorf("%+v, want run %s after %q", next, run, before)
		}
		if err := next.Write(c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEpoch_undoesARunThatNeverBegan(t *testing.T) {
	t.Parallel()
	job := []Stranger{{UID: "job", Ended: true}}
	for _, c := range []struct {
		what string
		was  Epoch
		want string
	}{
		{"the run before", Epoch{Claim: "c1"}.Begin("a").Begin("b").Undo("b"), "a"},
		{"twice, as after a crash", Epoch{Claim: "c1"}.Begin("a").Begin("b").Undo("b").Undo("b"), "a"},
		{"two that never began", Epoch{Claim: "c1"}.Begin("a").Begin("b").Undo("b").Begin("x").Undo("x"), "a"},
		{"another run has begun since", Epoch{Claim: "c1"}.Begin("a").Begin("b").Begin("x").Undo("b"), "x"},
		{"somebody else may have written before", Epoch{Claim: "c1"}.Begin("a").Begin("b").WithStrangers(job).Undo("b"), ""},
		{"the first run", Epoch{Claim: "c1"}.Begin("b").Undo("b"), ""},
	} {
		if next := c.was.Begin("c").WithStrangers(c.was.strangers()); next.Previous != c.want {
			t.Errorf("%s: previous %q, want %q", c.what, next.Previous, c.want)
		}
	}
}

// strangers returns the pods of the record, as if they still existed.
func (e Epoch) strangers() []Stranger {
	var pods []Stranger
	for _, uid := range e.Strangers {
		pods = append(pods, Stranger{UID: uid, Ended: true})
	}
	return pods
}

func TestEpoch_survivesTheClaim(t *testing.T) {
	t.Parallel()
	c := claim(map[string]string{"other": "stays"})
	want := Epoch{Claim: "c1"}.Begin("a").Begin("b").WithHolders([]Holder{{Instance: "vm", UID: "b", Shared: true}})
	if err := want.Write(c); err != nil {
		t.Fatal(err)
	}
	got, err := Of(c)
	if diff := cmp.Diff(want, got); diff != "" || err != nil || !got.Equal(want) {
		t.Errorf("%v, %s", err, diff)
	}
	if c.Annotations["other"] != "stays" {
		t.Errorf("annotations %v", c.Annotations)
	}
}

func TestEpoch_strangersEndTheTrust(t *testing.T) {
	t.Parallel()
	ended, running := Stranger{UID: "job", Ended: true}, Stranger{UID: "shell"}
	e := Epoch{Claim: "c1"}.Begin("a").WithStrangers([]Stranger{ended})
	for _, c := range []struct {
		what     string
		pods     []Stranger
		previous string
	}{
		{"the pod that had ended before", []Stranger{ended}, "a"},
		{"no pod any more", nil, "a"},
		{"another ended pod", []Stranger{ended, {UID: "restore", Ended: true}}, ""},
		{"a pod that runs", []Stranger{running}, ""},
	} {
		next := e.Begin("b").WithStrangers(c.pods)
		if next.Previous != c.previous {
			t.Errorf("%s: previous %q, want %q", c.what, next.Previous, c.previous)
		}
		// The same run again, after a crash, trusts no more than before.
		if again := next.Begin("b").WithStrangers(c.pods); again.Previous != c.previous {
			t.Errorf("%s, again: previous %q, want %q", c.what, again.Previous, c.previous)
		}
	}
	// A pod that ran when one run began, and had ended when the next began, may have written in between.
	next := e.Begin("b").WithStrangers([]Stranger{running}).Begin("c").WithStrangers([]Stranger{{UID: "shell", Ended: true}})
	if next.Previous != "" {
		t.Errorf("a pod that ended meanwhile: previous %q", next.Previous)
	}
	if last := next.Begin("d").WithStrangers([]Stranger{{UID: "shell", Ended: true}}); last.Previous != "c" {
		t.Errorf("a run later: previous %q", last.Previous)
	}
}

func TestEpoch_isVoidOnAnotherClaim(t *testing.T) {
	t.Parallel()
	c := claim(nil)
	if err := (Epoch{Claim: "c1"}).Begin("a").Begin("b").Write(c); err != nil {
		t.Fatal(err)
	}
	c.UID = "c2"
	got, err := Of(c)
	if diff := cmp.Diff(Epoch{Claim: "c2"}, got); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestEpoch_whatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "yes", `{"claim":"c1"`, `{"claim":1}`} {
		if e, err := Of(claim(map[string]string{layout.AnnotationRunEpoch: text})); err == nil || e.Run != "" {
			t.Errorf("%q: %+v, %v", text, e, err)
		}
	}
}

func TestEpoch_knowsADiskInOneGeneration(t *testing.T) {
	t.Parallel()
	e := Epoch{Claim: "c1"}.Begin("a").WithGeneration("")
	if e.KnowsDisk("") {
		t.Error("a run is no guest that has run")
	}
	e = e.WithDisk().Begin("b").WithGeneration("")
	if !e.KnowsDisk("") || e.KnowsDisk("1") {
		t.Errorf("after a guest has run: %+v", e)
	}
	e = e.Begin("attached") // not a guest
	if !e.KnowsDisk("") {
		t.Errorf("after an attachment: %+v", e)
	}
	e = e.Begin("c").WithGeneration("1")
	if e.KnowsDisk("") || e.KnowsDisk("1") {
		t.Errorf("in another generation: %+v", e)
	}
	c := claim(nil)
	if err := e.WithDisk().Write(c); err != nil {
		t.Fatal(err)
	}
	if got, err := Of(c); err != nil || !got.KnowsDisk("1") || got.Equal(e) {
		t.Errorf("%+v, %v", got, err)
	}
}
