package drive

import (
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/datamove/settings"
)

// Whoever writes settings that are wrong is told so by an event on the ConfigMap, once for each version, and the last good ones stay.
func TestCurrentSettings_tellOfBadOnes(t *testing.T) {
	t.Parallel()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: settings.ConfigMap, UID: "m"}, Data: map[string]string{settings.Key: "parallel: 3"}}
	c := fake.NewClientBuilder().WithObjects(m).Build()
	recorder := events.NewFakeRecorder(10)
	current := &CurrentSettings{Cached: c, Namespace: "varve", Events: recorder, Log: logr.Discard()}
	is := func(parallel int, says string) {
		t.Helper()
		for range 3 {
			if got := current.Current(t.Context()).Parallel; got != parallel {
				t.Errorf("parallel is %d, want %d", got, parallel)
			}
		}
		var told []string
		for len(recorder.Events) > 0 {
			told = append(told, <-recorder.Events)
		}
		if says == "" && len(told) > 0 || says != "" && (len(told) != 1 || !strings.HasPrefix(told[0], "Warning BadSettings ") || !strings.Contains(told[0], says)) {
			t.Errorf("events %q, want %q", told, says)
		}
	}
	write := func(text string) {
		t.Helper()
		m.Data[settings.Key] = text
		if err := c.Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	is(3, "")
	write("parallel: 4\nsurprise: true")
	is(3, "surprise")
	write("parallel: -1")
	is(3, "parallel")
	write("parallel: 5")
	is(5, "")
	if err := c.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	is(settings.Default().Parallel, "")
}
