//go:build peers

package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/test/s3"
)

const locationPassword = "s3cr3tTESTONLY"

// The scripts have a bucket in $LOCATION, and a cluster whose location velero/default is that bucket, in $KUBECONFIG. The cluster is
// nothing but the objects that are read.
func TestRepositoryInLocation(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	cluster := httptest.NewServer(objects(locationObjects(server)))
	t.Cleanup(cluster.Close)
	testscript.Run(t, testscript.Params{Dir: "testdata/location", Cmds: commands, Setup: func(env *testscript.Env) error {
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		env.Setenv("LOCATION", "s3://"+server.Address+"/"+server.Bucket)
		env.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
		env.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
		env.Setenv("KEY", server.AccessKey)
		env.Setenv("SECRET", server.SecretKey)
		env.Setenv("PASSWORD", locationPassword)
		env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
		config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","namespace":"shop"}}],"current-context":"c"}`, cluster.URL)
		for name, text := range map[string]string{"kubeconfig": config, "ca.pem": string(server.Authority), "password": locationPassword + "\n", "image": "the content of a disk"} {
			if err := os.WriteFile(filepath.Join(env.WorkDir, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
		return nil
	}})
}

// locationObjects are the objects of the cluster, by their paths.
func locationObjects(server *s3.Server) map[string]any {
	const locations, secrets = "/apis/velero.io/v1/namespaces/%s/backupstoragelocations/%s", "/api/v1/namespaces/%s/secrets/%s"
	at := func(format, namespace, name string) string { return fmt.Sprintf(format, namespace, name) }
	newLocation := func(namespace, name, provider string) *velerov1.BackupStorageLocation {
		l := &velerov1.BackupStorageLocation{}
		l.APIVersion, l.Kind, l.Namespace, l.Name = "velero.io/v1", "BackupStorageLocation", namespace, name
		l.Spec.Provider, l.Spec.ObjectStorage = provider, &velerov1.ObjectStorageLocation{Bucket: "shelf"}
		return l
	}
	bucket := newLocation("velero", "default", "aws")
	bucket.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: server.Bucket, CACert: server.Authority}
	bucket.Spec.Config = map[string]string{"s3Url": "https://" + server.Address, "region": "us-east-1"}
	readOnly := bucket.DeepCopy()
	readOnly.Name, readOnly.Spec.AccessMode = "readonly", velerov1.AccessReadOnly
	byRole := bucket.DeepCopy()
	byRole.Name = "role"
	byRole.Annotations = map[string]string{location.AnnotationRole: "arn:aws:iam::1:role/r", location.AnnotationSTS: "https://sts.lan"}
	lost := bucket.DeepCopy()
	lost.Name = "lost"
	secret := func(key, text string) *corev1.Secret {
		s := &corev1.Secret{Data: map[string][]byte{key: []byte(text)}}
		s.APIVersion, s.Kind = "v1", "Secret"
		return s
	}
	keys := secret("cloud", "[default]\naws_access_key_id="+server.AccessKey+"\naws_secret_access_key="+server.SecretKey+"\n")
	password := func(name string) string {
		return at(secrets, "varve", datamove.LocationPasswordSecret(datamove.Location{Namespace: "velero", Name: name}))
	}
	other := datamove.NamespacePasswordSecret("bank", datamove.Location{Namespace: "velero", Name: "default"})
	return map[string]any{
		at(locations, "velero", "default"): bucket, at(locations, "velero", "readonly"): readOnly, at(locations, "velero", "lost"): lost, at(locations, "velero", "role"): byRole,
		at(locations, "varve", "twice"): newLocation("varve", "twice", "aws"), at(locations, "velero", "twice"): newLocation("velero", "twice", "aws"),
		at(secrets, "velero", location.DefaultCredential): keys,
		password("default"): secret(datamove.PasswordKey, locationPassword+"\n"), password("readonly"): secret(datamove.PasswordKey, locationPassword),
		password("role"):            secret(datamove.PasswordKey, locationPassword),
		at(secrets, "varve", other): secret(datamove.PasswordKey, "another"+locationPassword),
	}
}
