//go:build controlplane

package expose

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/test/controlplane"
)

// Restore relies on the cluster: it binds a claim to a volume whose claimRef has the claim's UID, although the claim has a selector and names
// no volume. So Kubernetes' own binder takes part here, on a control plane where nothing else plays it.
func TestRestore_realBinderGivesTheVolumeToTheTarget(t *testing.T) {
	t.Parallel()
	real, err := controlplane.Start(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := real.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(real.InstallSnapshotKinds(t.Context()), real.InstallRoles(t.Context())); err != nil {
		t.Fatal(err)
	}
	startBinder(t, real)
	for name, test := range map[string]struct {
		binding storagev1.VolumeBindingMode
		policy  corev1.PersistentVolumeReclaimPolicy
	}{
		"Immediate":            {storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete},
		"WaitForFirstConsumer": {storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimRetain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, real)
			w.storage.stopped, w.pause = []string{"binder"}, 200*time.Millisecond
			w.class("class", test.binding, test.policy)
			d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("class")) })
			w.filled(d)
			w.handedOver(d)
			w.targetHas(d, test.policy)
			w.discarded(d)
			w.targetHas(d, test.policy)
			// Another one is cancelled before it is handed over.
			d = w.download(func(d *download) {
				d.DataDownload.Name, d.target.Name, d.Spec.TargetVolume.PVC = "r2", "data2", "data2"
				d.target.Spec.StorageClassName = ptr.To(w.className("class"))
			})
			w.filled(d)
			w.same("volumes", len(w.volumes()), 2)
			w.discarded(d)
			w.same("volumes", len(w.volumes()), 1)
			w.same("volumes on the storage", len(w.storage.volumes), 1)
			w.read(d.target)
			w.same("volume of the target", d.target.Spec.VolumeName, "")
		})
	}
}

// startBinder runs the binder of kube-controller-manager.
func startBinder(t *testing.T, c *controlplane.Cluster) {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.Config.CertData, ClientKeyData: c.Config.KeyData, Token: c.Config.BearerToken}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, file); err != nil {
		t.Fatal(err)
	}
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = filepath.Join("..", "..", "..", "..", "build", "kube", "bin")
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, filepath.Join(assets, "kube-controller-manager"),
		"--kubeconfig", file, "--controllers=persistentvolume-binder-controller", "--leader-elect=false", "--secure-port=0")
	command.Stderr = os.Stderr
	if os.Getenv("VARVE_TEST_LOG") == "" {
		command.Stderr = nil
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		var exit *exec.ExitError
		if err := command.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	})
}
