package drive

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/controller/datamove/expose"
	"github.com/varvebackup/varve/internal/datamove/settings"
)

// A setting that does not reach the exposers changes nothing, and nobody is told.
func TestExposeOptions_followTheSettings(t *testing.T) {
	t.Parallel()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: settings.ConfigMap}, Data: map[string]string{settings.Key: `
prepareTimeout: 4m
storageClasses:
  fast: {storageClass: copies, readOnly: true, readWhole: true}
  kept: {keepSnapshot: true}
`}}
	current := &CurrentSettings{
		Cached: fake.NewClientBuilder().WithObjects(m).Build(), Namespace: "varve",
		Log: logr.Discard(),
	}
	const halfOfIt = 2 * time.Minute // the default is longer, and would leave no time
	want := expose.Options{
		PrepareTimeout: 4 * time.Minute, ConsumerWait: halfOfIt, Classes: map[string]expose.Class{
			"fast": {StorageClass: "copies", ReadOnly: true, ReadWhole: true}, "kept": {KeepSnapshot: true},
		},
	}
	if diff := cmp.Diff(want, exposeOptions(current)()); diff != "" {
		t.Error(diff)
	}
}
