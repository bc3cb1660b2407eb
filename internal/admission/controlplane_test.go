//go:build controlplane

package admission

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestWebhookLife serves the webhook to a real API server: trust, refusals, rotation, and a webhook that is down.
func TestWebhookLife(t *testing.T) {
	admin, varve, user := cluster.Client(t, controlplane.Admin), cluster.Client(t, controlplane.Controller), cluster.Client(t, controlplane.Plain)
	if err := cluster.Apply(t.Context(), "deploy/admission/webhook.yaml"); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	configuration := &admissionregv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: DefaultConfiguration}}
	controlplane.Update(t, admin, configuration, false, func(c *admissionregv1.ValidatingWebhookConfiguration) {
		// No Service leads from this API server to the test's webhook.
		for i := range c.Webhooks {
			config := &c.Webhooks[i].ClientConfig
			config.URL, config.Service = ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", port, *config.Service.Path)), nil
		}
	})
	clock := testingclock.NewFakeClock(time.Now())
	run := func() (stop func()) {
		mgr := cluster.Manager(t, controlplane.Controller, func(*ctrl.Options) {})
		err := SetupWebhook(mgr, Options{Namespace: controlplane.SystemNamespace, Port: port, Host: "127.0.0.1", ExtraHosts: []string{"127.0.0.1"}, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		return controlplane.StartManager(t, mgr)
	}
	stop := run()

	ns := cluster.Namespace(t)
	for name, mode := range map[string]corev1.PersistentVolumeMode{"block": corev1.PersistentVolumeBlock, "files": corev1.PersistentVolumeFilesystem} {
		if err := user.Create(t.Context(), gen.Claim(gen.Meta(ns, name), gen.SetVolumeMode(mode))); err != nil {
			t.Fatal(err)
		}
	}
	vmi := gen.VirtualMachineInstance(gen.Meta(ns, "vm"), gen.Guest())
	if err := user.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	attach := func(name, claim string) error {
		changed := vmi.DeepCopy()
		changed.Spec.UtilityVolumes = append(changed.Spec.UtilityVolumes, kubevirtv1.UtilityVolume{
			Name: name, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		})
		return varve.Update(t.Context(), changed, client.DryRunAll)
	}
	refuses := func(claim, text string) {
		t.Helper()
		controlplane.Eventually(t, func() error {
			err := attach("u", claim)
			if err == nil || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("claim %s: got %v, want %q", claim, err, text)
			}
			return nil
		})
	}
	admits := func(claim string) {
		t.Helper()
		controlplane.Eventually(t, func() error { return attach("u", claim) })
	}
	refuses("nowhere", "spec.utilityVolumes[u].claimName: PersistentVolumeClaim nowhere does not exist; create it first")
	refuses("block", "PersistentVolumeClaim block has volumeMode Block; use one with volumeMode Filesystem")
	admits("files")
	handlersWriteToTheirMachinesTrackers(t)
	schedules := newScheduleWorld(t)
	schedules.judged()
	image := imageWithClone(t)
	refusesDeletion := func(text string) {
		t.Helper()
		if err := user.Delete(t.Context(), image, client.DryRunAll); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("delete the image: got %v, want %q", err, text)
		}
	}
	refusesDeletion("BackingImage debian has clones: delete their claims first. The Volumes are: pvc-1")

	// The certificate is due for renewal. A new one takes over, and the bundle still has the old one's authority.
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: controlplane.SystemNamespace, Name: DefaultSecret}
	if err := admin.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	old := secret.DeepCopy()
	clock.Step(validity - renewBefore)
	controlplane.Eventually(t, func() error {
		if err := admin.Get(t.Context(), key, secret); err != nil {
			return err
		}
		if string(secret.Data[corev1.TLSCertKey]) == string(old.Data[corev1.TLSCertKey]) {
			clock.Step(lookEvery) // the keeper may have begun to wait after the first step
			return fmt.Errorf("the certificate is not renewed")
		}
		return nil
	})
	if !strings.HasSuffix(string(secret.Data[authorityKey]), string(old.Data[authorityKey])) {
		t.Error("the bundle lost the previous authority")
	}
	controlplane.Eventually(t, func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration); err != nil {
			return err
		}
		if string(configuration.Webhooks[0].ClientConfig.CABundle) != string(secret.Data[authorityKey]) {
			return fmt.Errorf("the caBundle is not the new one")
		}
		return nil
	})

	// A caBundle that somebody removed comes back.
	controlplane.Update(t, admin, configuration, false, func(c *admissionregv1.ValidatingWebhookConfiguration) {
		c.Webhooks[0].ClientConfig.CABundle = nil
	})
	controlplane.Eventually(t, func() error {
		clock.Step(lookEvery)
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration); err != nil {
			return err
		}
		if len(configuration.Webhooks[0].ClientConfig.CABundle) == 0 {
			return fmt.Errorf("no caBundle")
		}
		return nil
	})

	// While nobody serves, additions are refused and everything else is admitted.
	stop()
	refuses("files", "failed calling webhook")
	vmi.Status.NodeName = "node-1"
	if err := varve.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.Phase = kubevirtv1.PhaseRunning
	if err := cluster.Client(t, controlplane.HandlerOn("node-1")).Status().Update(t.Context(), vmi); err != nil {
		t.Errorf("a dead webhook blocks the handler: %v", err)
	}
	vmi.Labels = map[string]string{"a": "b"}
	if err := user.Update(t.Context(), vmi); err != nil {
		t.Errorf("a dead webhook blocks a user: %v", err)
	}
	schedules.goOnWithoutWebhook()
	refusesDeletion("failed calling webhook")

	// After a restart with the clock set back, the certificate is not valid yet and is replaced.
	clock.SetTime(time.Now())
	run()
	admits("files")
	future := string(secret.Data[corev1.TLSCertKey])
	if err := admin.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data[corev1.TLSCertKey]) == future {
		t.Error("a certificate that is not valid yet is served")
	}
}

// imageWithClone returns an image that a volume is a clone of.
func imageWithClone(t *testing.T) *longhornv1.BackingImage {
	t.Helper()
	admin := cluster.Client(t, controlplane.Admin)
	image := &longhornv1.BackingImage{
		ObjectMeta: gen.Meta(controlplane.SystemNamespace, "debian"),
		Spec:       longhornv1.BackingImageSpec{SourceType: longhornv1.SourceUpload},
	}
	volume := &longhornv1.Volume{
		ObjectMeta: gen.Meta(controlplane.SystemNamespace, "pvc-1"),
		Spec:       longhornv1.VolumeSpec{Size: 1 << 30, BackingImage: image.Name},
	}
	for _, o := range []client.Object{image, volume} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// handlersWriteToTheirMachinesTrackers must be called while the webhook is served.
func handlersWriteToTheirMachinesTrackers(t *testing.T) {
	t.Helper()
	ns := cluster.Namespace(t)
	varve := cluster.Client(t, controlplane.Controller)
	tracker := gen.Tracker(gen.Meta(ns, "tracker"), "vm")
	if err := varve.Create(t.Context(), tracker); err != nil {
		t.Fatal(err)
	}
	tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "tracker-1", CreationTime: metav1.Now().Rfc3339Copy(), Disks: []string{"root"}}
	if err := varve.Status().Update(t.Context(), tracker); err != nil {
		t.Fatal(err)
	}
	discard := func(user controlplane.User) error {
		changed := tracker.DeepCopy()
		changed.Status.LatestCheckpoint = nil
		return cluster.Client(t, user).Status().Update(t.Context(), changed, client.DryRunAll)
	}
	expect := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	expect(discard(controlplane.HandlerOn("node-1")), "VirtualMachine vm does not run")
	vmi := gen.VirtualMachineInstance(gen.Meta(ns, "vm"), gen.Guest())
	if err := varve.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	expect(discard(controlplane.HandlerOn("node-1")), "does not run on node node-1")
	vmi.Status.NodeName = "node-1"
	if err := varve.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	for _, user := range []controlplane.User{controlplane.HandlerOn("node-1"), controlplane.Controller} {
		if err := discard(user); err != nil {
			t.Errorf("%s is refused: %v", user.Name, err)
		}
	}
	expect(discard(controlplane.HandlerOn("node-2")), "does not run on node node-2")
	expect(discard(controlplane.UnboundHandler), "a handler's token must be bound")
}
