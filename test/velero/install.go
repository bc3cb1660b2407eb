package velero

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/varvebackup/varve/test/s3"
)

// credentialSecret holds the keys of the location, in the format of AWS's credentials file.
const (
	credentialSecret = "cloud-credentials"
	credentialKey    = "cloud"
)

// install brings the cluster into the state that the server expects, whatever of it is there already.
func (s *Server) install(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{s.crds}, ErrorIfPathMissing: true, MaxTime: time.Minute}); err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.Namespace, Name: name} }
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	secret := &corev1.Secret{ObjectMeta: meta(credentialSecret)}
	location := s.object("BackupStorageLocation", Location)
	deployment := &appsv1.Deployment{ObjectMeta: meta("velero")}
	for _, wanted := range []struct {
		object client.Object
		fill   func()
	}{
		{namespace, func() {}},
		{secret, func() { secret.Data = map[string][]byte{credentialKey: credentials(s.Store)} }},
		{location, func() { location.Object["spec"] = s.locationSpec() }},
		{deployment, func() { deployment.Spec = deploymentSpec() }},
	} {
		fill := func() error { wanted.fill(); return nil }
		if _, err := controllerutil.CreateOrUpdate(ctx, s.cluster, wanted.object, fill); err != nil {
			return fmt.Errorf("install %T %s: %w", wanted.object, wanted.object.GetName(), err)
		}
	}
	return nil
}

func credentials(e s3.Endpoint) []byte {
	return fmt.Appendf(nil, "[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", e.AccessKey, e.SecretKey)
}

func (s *Server) locationSpec() map[string]any {
	storage := map[string]any{"bucket": s.Store.Bucket}
	if s.Prefix != "" {
		storage["prefix"] = s.Prefix
	}
	if s.Store.Authority != nil {
		storage["caCert"] = base64.StdEncoding.EncodeToString(s.Store.Authority)
	}
	return map[string]any{
		"provider": "aws", "default": true, "objectStorage": storage,
		"credential": map[string]any{"name": credentialSecret, "key": credentialKey},
		// The CLI reads logs and descriptions from the same URL, which the server signs.
		"config": map[string]any{"region": s.Store.Region, "s3ForcePathStyle": "true", "s3Url": s.Store.URL()},
	}
}

// deploymentSpec is what `velero restore` looks for: a container of this name, whatever runs in it.
func deploymentSpec() appsv1.DeploymentSpec {
	labels := map[string]string{"app": "velero-outside"}
	return appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](0),
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "none"}}},
		},
	}
}

// object returns an object of one of Velero's kinds, with nothing but its name.
func (s *Server) object(kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: kind})
	o.SetNamespace(s.Namespace)
	o.SetName(name)
	return o
}

// available says whether the server found its location Available after a time.
func (s *Server) available(ctx context.Context, after time.Time) (available bool, seen string, err error) {
	location := s.object("BackupStorageLocation", Location)
	if err := s.cluster.Get(ctx, client.ObjectKeyFromObject(location), location); err != nil {
		return false, "", err
	}
	phase, _, _ := unstructured.NestedString(location.Object, "status", "phase")
	message, _, _ := unstructured.NestedString(location.Object, "status", "message")
	validated, _, _ := unstructured.NestedString(location.Object, "status", "lastValidationTime")
	at, err := time.Parse(time.RFC3339, validated)
	seen = fmt.Sprintf("phase %q, %s, validated at %q", phase, message, validated)
	// The API has whole seconds, and another server may have found it Available before.
	return err == nil && phase == "Available" && !at.Before(after.Truncate(time.Second)), seen, nil
}

// Remove takes Velero out of the cluster: all its objects, and its namespace. The CRDs and what is in the bucket stay. What others hold by
// finalizers, such as the DataUploads of a data mover, must be gone within the limit.
func (s *Server) Remove(tb testing.TB, limit time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), limit)
	defer cancel()
	// The server has a finalizer on restores. Without it the namespace would stay.
	s.removeAll(ctx, tb, "Restore", limit)
	s.removeAll(ctx, tb, "Backup", limit)
	s.Stop(tb)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	if err := s.cluster.Delete(ctx, namespace); client.IgnoreNotFound(err) != nil {
		tb.Fatalf("remove Velero: %v", err)
	}
	s.waitGone(ctx, tb, namespace, limit)
}
