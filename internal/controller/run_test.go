//go:build controlplane

package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// TestRun runs everything as `varve controller` does, with the roles of deploy/rbac: lease, checks, metrics, and an
// end without an error.
func TestRun(t *testing.T) {
	if err := errors.Join(cluster.InstallRoles(t.Context()), cluster.InstallSnapshotKinds(t.Context())); err != nil {
		t.Fatal(err)
	}
	sa := controlplane.Controller.Restrict()
	w := &world{T: t, ns: cluster.Namespace(t), user: cluster.Client(t, controlplane.Plain), kubelet: cluster.Client(t, controlplane.Admin)}
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	// A backup that ended before this controller began, and that is in no cache.
	taken := time.Now().Add(time.Hour).Truncate(time.Second)
	cluster.Seed(t, []client.Object{gen.Backup(gen.Meta(w.ns, "ended"), func(b *backupv1.VirtualMachineBackup) {
		b.Labels = map[string]string{layout.LabelEnded: "true"}
		b.Status = backupv1.VirtualMachineBackupStatus{
			Phase: backupv1.BackupDone, Result: backupv1.BackupSucceeded, Reason: backupv1.ReasonCompleted, BackupType: backupv1.Full, SourceName: "vm",
			MovedBytes: 4096, StartTimestamp: &metav1.Time{Time: taken}, CompletionTimestamp: &metav1.Time{Time: taken.Add(time.Minute)},
		}
	})})
	// A kept snapshot of which nobody knows what it is kept for, and whose deletion hangs.
	kept := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: w.ns, Labels: map[string]string{datamove.LabelKeptSnapshot: "unknown"}, Finalizers: []string{"example.com/hangs"},
	}}
	kept.Spec.Source.VolumeSnapshotContentName = ptr.To("content")
	if err := w.kubelet.Create(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	scraper := accountToken(t, w.ns, "scraper")
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-scraper"}}
	binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "varve-metrics-reader"}
	binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.ns, Name: "scraper"}}
	if err := w.kubelet.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	metrics, health := freeAddress(t), freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{
			Config: cluster.ConfigFor(sa), Namespace: controlplane.SystemNamespace, LauncherImage: "varve-launcher:test", VarveImage: "varve:test",
			MetricsAddress: metrics, HealthAddress: health, LeaderElection: true, Logger: logr.Discard(),
		})
	}()
	vmi := w.vmi(inPhase(kubevirtv1.PhasePending))
	if vmi.Labels[layout.LabelVM] != "vm" {
		t.Errorf("labels %v", vmi.Labels)
	}
	for _, want := range []string{
		fmt.Sprintf("varve_vmis{namespace=%q,node=\"\",phase=\"Pending\"} 1", w.ns),
		fmt.Sprintf("varve_vm_info{changed_block_tracking=\"None\",namespace=%q,", w.ns),
		fmt.Sprintf("varve_backup_last_success_timestamp_seconds{namespace=%q,vm=\"vm\"} %v", w.ns, float64(taken.Unix())),
		fmt.Sprintf("varve_backup_last_success_moved_bytes{namespace=%q,vm=\"vm\"} 4096", w.ns),
		"varve_vm_start_failures_total ", "varve_changed_block_tracking_selectors_invalid 0",
		`varve_kept_snapshots{driver="",namespace=""} 1`,
	} {
		controlplane.Eventually(t, func() error {
			if body, err := get("https://"+metrics+"/metrics", scraper); err != nil || !strings.Contains(body, want) {
				return fmt.Errorf("no %s in the metrics: %v", want, err)
			}
			return nil
		})
	}
	for who, token := range map[string]string{"nobody": "", "somebody without a name": "forged", "a tenant": accountToken(t, w.ns, "tenant")} {
		if body, err := get("https://"+metrics+"/metrics", token); err == nil || strings.Contains(body, "varve_") {
			t.Errorf("%s reads the metrics: %v", who, err)
		}
	}
	if _, err := get("http://"+metrics+"/metrics", scraper); err == nil {
		t.Error("metrics and tokens are in plain text")
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if _, err := get("http://"+health+path, ""); err != nil {
			t.Error(err)
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "varve-controller"}}
	if err := w.kubelet.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
	if err := w.kubelet.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil || *lease.Spec.HolderIdentity != "" {
		t.Errorf("the lease was not given away: %v, %+v", err, lease.Spec)
	}
}

func TestRun_namesWhatIsMissing(t *testing.T) {
	if err := Run(t.Context(), Options{Config: cluster.Config, Namespace: "varve"}); err == nil || !strings.Contains(err.Error(), "launcher image") {
		t.Errorf("got %v", err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	return l.Addr().String()
}

// accountToken makes a service account and returns a token of it.
func accountToken(t *testing.T, ns, name string) string {
	t.Helper()
	admin := cluster.Client(t, controlplane.Admin)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	if err := admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// get returns what is at a URL. token may be empty.
func get(url, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r.Body)
	if cerr := r.Body.Close(); err == nil {
		err = cerr
	}
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, r.Status)
	}
	return string(body), err
}
