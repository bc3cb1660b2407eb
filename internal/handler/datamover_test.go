package handler

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/handler/datamover"
	"github.com/varvebackup/varve/internal/handler/exposer"
)

// A setting that does not reach the exposers changes nothing, and nobody is told.
func TestExposerOptions_followTheSettings(t *testing.T) {
	t.Parallel()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: settings.ConfigMap}, Data: map[string]string{settings.Key: `
prepareTimeout: 4m
storageClasses:
  fast: {storageClass: copies, readOnly: true, readWhole: true}
  kept: {keepSnapshot: true}
`}}
	current := &datamover.CurrentSettings{Cached: fake.NewClientBuilder().WithObjects(m).Build(), Namespace: "varve", Log: logr.Discard()}
	want := exposer.Options{PrepareTimeout: 4 * time.Minute, Classes: map[string]exposer.Class{
		"fast": {StorageClass: "copies", ReadOnly: true, ReadWhole: true}, "kept": {KeepSnapshot: true},
	}}
	if diff := cmp.Diff(want, exposerOptions(current)()); diff != "" {
		t.Error(diff)
	}
}
