//go:build box

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/box/internal/proc"
	"github.com/varvebackup/varve/box/internal/s3"
)

// mustS3 brings the S3 service up, and returns its description and its process.
func mustS3(t *testing.T) (d s3.Description, id proc.ID) {
	t.Helper()
	mustRun(t, "s3", "up")
	var record struct {
		Process proc.ID `json:"process"`
	}
	for path, to := range map[string]any{dir.S3Description(): &d, dir.S3Process(): &record} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, to); err != nil {
			t.Fatal(err)
		}
	}
	if !record.Process.Alive() {
		t.Fatalf("the recorded process %d does not run", record.Process.PID)
	}
	return d, record.Process
}

// bucketFile is where the service keeps an object.
func bucketFile(bucket, key string) string { return filepath.Join(dir.S3(), "data", bucket, key) }

func TestS3_podsReachIt(t *testing.T) {
	d, _ := mustS3(t)
	authority, err := os.ReadFile(d.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	trust := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "s3-authority"}, Data: map[string]string{"ca.crt": string(authority)}}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, trust, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().ConfigMaps(namespace).Delete(ctx, trust.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	withTrust := func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "trust", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: trust.Name}},
		}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "trust", MountPath: "/trust"}}
		s.Containers[0].Env = []corev1.EnvVar{{Name: "SSL_CERT_FILE", Value: "/trust/ca.crt"}}
	}
	loadProbe(t)
	start(t, probePod("s3-client", "node1", withTrust))
	if out, err := kubectl("exec", "s3-client", "--", "/probe", "get", d.Endpoint+"/-/health"); err != nil {
		t.Errorf("from a pod: %q, %v", out, err)
	}
}

func TestS3_staysAndIsRepaired(t *testing.T) {
	_, first := mustS3(t)
	for bucket, locked := range map[string]bool{s3.Bucket: false, s3.LockedBucket: true} {
		_, err := unix.Getxattr(bucketFile(bucket, ""), "user.bucket-lock", make([]byte, 1024))
		if (err == nil) != locked {
			t.Errorf("object lock of %s: %v", bucket, err)
		}
	}
	if err := os.WriteFile(bucketFile(s3.Bucket, "object"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustUp(t)
	if _, now := mustS3(t); now != first {
		t.Errorf("a healthy service was started again: %v, then %v", first, now)
	}
	last := first
	for what, damage := range map[string]func() error{
		"its process is killed": func() error { return last.Kill(context.Background()) },
		"its record is damaged": func() error { return os.WriteFile(dir.S3Process(), []byte("{"), 0o600) },
		"its record is gone":    func() error { return os.Remove(dir.S3Process()) },
		"its keys are gone":     func() error { return os.Remove(filepath.Join(dir.S3(), "credentials")) },
		"its authority is gone": func() error { return os.RemoveAll(filepath.Join(dir.S3(), "pki")) },
		"a bucket is gone":      func() error { return os.RemoveAll(bucketFile(s3.LockedBucket, "")) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		_, now := mustS3(t)
		if restarted := now != last; restarted != (what != "a bucket is gone") || (restarted && last.Alive()) {
			t.Errorf("%s: process %v, then %v, and the first one runs: %v", what, last, now, last.Alive())
		}
		last = now
		if data, err := os.ReadFile(bucketFile(s3.Bucket, "object")); err != nil || string(data) != "content" {
			t.Errorf(wrongData+"%s: the object is %q, %v", what, data, err)
		}
		if _, err := os.Stat(bucketFile(s3.LockedBucket, "")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustRun(t, "s3", "down")
	if _, err := os.Stat(dir.S3()); !os.IsNotExist(err) || last.Alive() {
		t.Errorf("the service stays: %v, %v", err, last.Alive())
	}
}
