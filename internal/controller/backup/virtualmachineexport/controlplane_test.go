//go:build controlplane

package virtualmachineexport

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

func claimsLife(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	e := w.reaches("Pending", exportv1.ReasonPodPending, "")
	pod := w.pod()
	token := wait(w, &corev1.Secret{ObjectMeta: gen.Meta(w.ns, "export-token-e")}, exists)
	if len(token.Data["token"]) != 20 || ptr.Deref(e.Status.TokenSecretRef, "") != token.Name {
		w.Errorf("token %q, status %+v", token.Data["token"], e.Status.TokenSecretRef)
	}
	service := wait(w, &corev1.Service{ObjectMeta: gen.Meta(w.ns, "virt-export-e")}, exists)
	if p := service.Spec.Ports; len(p) != 1 || p[0].Port != 443 || p[0].TargetPort.IntValue() != 8443 || service.Spec.PublishNotReadyAddresses {
		w.Errorf("%+v", service.Spec)
	}
	for key, value := range service.Spec.Selector {
		if pod.Labels[key] != value {
			w.Errorf("the service selects %v, the pod has %v", service.Spec.Selector, pod.Labels)
		}
	}
	w.serves(pod)
	e = w.reaches("Ready", exportv1.ReasonPodReady, "")
	w.verifies(e)
	if v := e.Status.Links.Internal.Volumes; len(v) != 1 || v[0].Formats[0].URL != "https://virt-export-e."+w.ns+".svc/volumes/disk/disk.img" {
		w.Errorf("%+v", v)
	}
	if x := e.Status.Links.External; x == nil || !strings.HasPrefix(x.Volumes[0].Formats[0].URL, "https://exports.example.org/api/export.kubevirt.io/v1beta1/namespaces/"+w.ns+"/virtualmachineexports/e/volumes/disk/") {
		w.Errorf("%+v", x)
	}
	if !e.Status.TTLExpirationTime.Time.Equal(e.CreationTimestamp.Add(2 * time.Hour)) {
		w.Errorf("expires %s, created %s", e.Status.TTLExpirationTime, e.CreationTimestamp)
	}

	// Another controller leaves all of that as it is.
	before := w.children()
	w.restart()
	w.later(time.Second)
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	after := w.children()
	for i := range before {
		if len(after) != len(before) || before[i].GetResourceVersion() != after[i].GetResourceVersion() {
			w.Fatalf("changed: %+v, %+v", before, after)
		}
	}
}

func machinesLife(w *world) {
	w.boundClaim("root")
	w.boundClaim("data")
	w.export(gen.Source("vm"))
	w.reaches("Pending", exportv1.ReasonSourceNotFound, "VirtualMachine vm does not exist")
	vm := machine(w.ns)
	w.create(vm)
	w.reaches("Skipped", exportv1.ReasonNoVolumes, "")
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec = machine(w.ns, "root", "data").Spec })
	first := w.pod()
	w.serves(first)
	e := w.reaches("Ready", exportv1.ReasonPodReady, "")
	if v := e.Status.Links.Internal.Volumes; len(v) != 2 || v[0].Name != "root" || ptr.Deref(e.Status.VirtualMachineName, "") != "vm" {
		w.Errorf("%+v", e.Status)
	}

	// The manifests follow the machine, and the pod stays.
	manifests := wait(w, &corev1.Secret{ObjectMeta: gen.Meta(w.ns, "virt-export-e-manifests")}, exists)
	if m := e.Status.Links.Internal.Manifests; len(m) != 2 || m[0].URL != "https://virt-export-e."+w.ns+".svc/internal/manifests/all" || bytes.Contains(manifests.Data["internal.json"], []byte("RerunOnFailure")) {
		w.Errorf("%+v, %s", m, manifests.Data["internal.json"])
	}
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) {
		vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyRerunOnFailure)
	})
	wait(w, manifests, func(s *corev1.Secret) error {
		if !bytes.Contains(s.Data["internal.json"], []byte("RerunOnFailure")) || !bytes.Contains(s.Data["external.json"], []byte("RerunOnFailure")) {
			return fmt.Errorf("%s", s.Data)
		}
		return nil
	})
	if got := w.pod(); got.UID != first.UID {
		w.Error("another pod")
	}

	// The machine starts: it goes first.
	vmi := gen.VirtualMachineInstance(gen.Meta(w.ns, "vm"), vm.Spec.Template.Spec)
	w.create(vmi)
	e = w.reaches("Pending", exportv1.ReasonClaimInUse, layout.LauncherPod("vm", vmi.UID))
	if e.Status.Links != nil {
		w.Errorf("links to what is not served: %+v", e.Status.Links)
	}
	w.sweep(first)
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseSucceeded })
	w.later(time.Minute)
	w.serves(w.pod(first))
	w.reaches("Ready", exportv1.ReasonPodReady, "")
}

// pullBackup stores a backup in pull mode with its status.
func (w *world) pullBackup(phase backupv1.BackupPhase) *backupv1.VirtualMachineBackup {
	w.Helper()
	b := gen.Backup(gen.Meta(w.ns, "b"), gen.SetBackupMode(backupv1.PullMode))
	b.CreationTimestamp = metav1.Now()
	b.Spec.TokenSecretRef = ptr.To("token")
	b.Status.Phase, b.Status.NodeName, b.Status.PullTunnelSecret = phase, "node-1", "backup-tunnel-b"
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {Name: "data"}}
	cluster.Seed(w.T, []client.Object{b})
	return wait(w, b, exists)
}

func (w *world) setPhase(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase) {
	w.Helper()
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), b, true, func(b *backupv1.VirtualMachineBackup) { b.Status.Phase = phase })
}

func backupsLife(w *world) {
	w.export(gen.BackupSource("b"))
	w.reaches("Pending", exportv1.ReasonSourceNotFound, "VirtualMachineBackup b does not exist")
	b := w.pullBackup(backupv1.BackupStarting)
	w.reaches("Pending", exportv1.ReasonBackupNotReady, "nothing to pull yet")
	w.setPhase(b, backupv1.BackupServing)
	w.reaches("Pending", exportv1.ReasonBackupNotReady, "Secret backup-tunnel-b")
	w.create(&corev1.Secret{ObjectMeta: gen.Meta(w.ns, "backup-tunnel-b"), Data: map[string][]byte{"token": []byte("t")}})
	pod := w.pod()
	config, err := podspec.Decode(configIn(pod))
	if err != nil || config.Backup.UID != b.UID || len(config.Backup.Volumes) != 2 {
		w.Errorf("%+v, %v", config, err)
	}
	// The launcher finds Service and authorities while nothing serves yet.
	e := w.reaches("Pending", exportv1.ReasonPodPending, "")
	service := wait(w, &corev1.Service{ObjectMeta: gen.Meta(w.ns, e.Status.ServiceName)}, exists)
	if p := service.Spec.Ports; len(p) != 2 || p[1].Port != 9090 || p[1].TargetPort.IntValue() != 9090 || !service.Spec.PublishNotReadyAddresses {
		w.Errorf("%+v", service.Spec)
	}
	w.verifies(e)
	w.serves(pod)
	e = w.reaches("Ready", exportv1.ReasonPodReady, "")
	if got := e.Status.Links.Internal.Backups; len(got) != 2 || got[0].Endpoints[0].URL != "https://virt-export-e."+w.ns+".svc/exports/root/map" {
		w.Errorf("%+v", got)
	}

	w.setPhase(b, backupv1.BackupDone)
	e = w.reaches("Terminated", exportv1.ReasonBackupEnded, "VirtualMachineBackup b has ended: Done")
	if e.Status.Links != nil {
		w.Errorf("links %+v", e.Status.Links)
	}
	w.sweep(pod)
}

func pushBackup(w *world) {
	w.create(gen.Backup(gen.Meta(w.ns, "b")))
	w.export(gen.BackupSource("b"))
	w.reaches("Skipped", exportv1.ReasonNotPull, "VirtualMachineBackup b is not in pull mode")
	if made := w.children(); len(made) > 0 {
		w.Errorf("%+v", made)
	}
}

func claimNotReady(w *world) {
	w.export(gen.ClaimSource("disk"))
	e := w.reaches("Pending", exportv1.ReasonClaimNotFound, "PersistentVolumeClaim disk does not exist")
	if c := e.Status.Conditions[1]; c.Type != exportv1.ConditionPVC || c.Status != corev1.ConditionFalse || c.Reason != exportv1.ReasonClaimNotFound {
		w.Errorf("%+v", c)
	}
	c := gen.Claim(gen.Meta(w.ns, "disk"))
	w.create(c)
	w.reaches("Pending", exportv1.ReasonClaimNotBound, "PersistentVolumeClaim disk is not bound")
	if made := w.children(); len(made) > 0 {
		w.Errorf("%+v", made)
	}
	w.bind(c)
	w.serves(w.pod())
	e = w.reaches("Ready", exportv1.ReasonPodReady, "")
	if c := e.Status.Conditions[1]; c.Status != corev1.ConditionTrue || c.Reason != exportv1.ReasonClaimBound {
		w.Errorf("%+v", c)
	}
}

// Pods that are not Varve's are not watched.
func claimInUse(w *world) {
	w.boundClaim("disk")
	shell := w.foreignPod("shell", "disk")
	w.export(gen.ClaimSource("disk"))
	w.reaches("Pending", exportv1.ReasonClaimInUse, "Pod shell can write to PersistentVolumeClaim disk")
	if made := w.children(); len(made) > 0 {
		w.Errorf("%+v", made)
	}
	w.end(shell, corev1.PodSucceeded)
	pod := w.pod()
	w.serves(pod)
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	w.foreignPod("another", "disk")
	w.later(lookEvery)
	w.reaches("Pending", exportv1.ReasonClaimInUse, "Pod another can write")
	w.sweep(pod)
}

func podEnds(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	pod := w.pod()
	w.serves(pod)
	w.reaches("Ready", exportv1.ReasonPodReady, "")

	// Deleted by somebody, as in a drain. It has served, so the next one is there at once.
	w.later(time.Minute)
	w.delete(pod)
	next := w.pod(pod)
	w.serves(next)
	w.reaches("Ready", exportv1.ReasonPodReady, "")

	// Evicted by the kubelet.
	w.later(time.Minute)
	w.end(next, corev1.PodFailed)
	third := w.pod(pod, next)

	// One that never serves is not followed by the next one at once.
	w.delete(third)
	w.reaches("Pending", exportv1.ReasonPodLost, "2 pods of this export have ended")
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(third), &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("a pod: %w", err)
	})
	w.later(2 * time.Second)
	w.serves(w.pod(pod, next, third))
	w.reaches("Ready", exportv1.ReasonPodReady, "")
}

// The pod's node is gone: nobody confirms its deletion.
func podStuck(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	pod := w.pod()
	binding := &corev1.Binding{ObjectMeta: gen.Meta(w.ns, pod.Name), Target: corev1.ObjectReference{Kind: "Node", Name: "gone"}}
	if err := w.admin.SubResource("binding").Create(w.Context(), pod, binding); err != nil {
		w.Fatal(err)
	}
	w.serves(pod)
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	if err := w.admin.Delete(w.Context(), pod); err != nil {
		w.Fatal(err)
	}
	w.reaches("Pending", exportv1.ReasonPodLost, "was deleted")
	w.later(time.Minute)
	w.pod(pod)
}

func namedToken(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"), func(e *exportv1.VirtualMachineExport) { e.Spec.TokenSecretRef = ptr.To("mine") })
	w.reaches("Pending", exportv1.ReasonTokenNotFound, "Secret mine")
	secret := &corev1.Secret{ObjectMeta: gen.Meta(w.ns, "mine"), Data: map[string][]byte{"token": {}}}
	w.create(secret)
	w.reaches("Pending", exportv1.ReasonTokenInvalid, "Secret mine")
	controlplane.Update(w.T, w.user, secret, false, func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("x")} })
	w.reaches("Pending", exportv1.ReasonTokenInvalid, "fewer than 16 characters")
	controlplane.Update(w.T, w.user, secret, false, func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("the clients' token")} })
	pod := w.pod()
	w.serves(pod)
	e := w.reaches("Ready", exportv1.ReasonPodReady, "")
	if ptr.Deref(e.Status.TokenSecretRef, "") != "mine" {
		w.Errorf("%+v", e.Status.TokenSecretRef)
	}
	for _, made := range w.children() {
		if made.GetName() == podspec.TokenSecret("e") {
			w.Error("a token beside the user's")
		}
	}
	// Whoever takes the token back ends what it opens.
	w.delete(secret)
	w.later(lookEvery)
	w.reaches("Pending", exportv1.ReasonTokenNotFound, "")
	w.sweep(pod)
}

func foreignObjects(w *world) {
	w.boundClaim("disk")
	w.boundClaim("other")
	taken := []client.Object{
		w.foreignPod("virt-export-e", "other"),
		&corev1.Service{ObjectMeta: gen.Meta(w.ns, "virt-export-e"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		&corev1.Secret{ObjectMeta: gen.Meta(w.ns, "virt-export-e-cert"), Data: map[string][]byte{"a": []byte("b")}},
		&corev1.Secret{ObjectMeta: gen.Meta(w.ns, "export-token-e"), Data: map[string][]byte{"token": []byte("theirs")}},
	}
	for _, o := range taken[1:] {
		w.create(o)
	}
	w.export(gen.ClaimSource("disk"))
	for _, o := range taken {
		w.reaches("Pending", exportv1.ReasonForeign, " "+o.GetName()+" exists and does not belong to this export")
		now := o.DeepCopyObject().(client.Object)
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), now); err != nil || now.GetUID() != o.GetUID() || now.GetResourceVersion() != o.GetResourceVersion() {
			w.Errorf("%T %s was touched: %v", o, o.GetName(), err)
		}
		if made := w.children(); len(made) > 0 {
			w.Errorf("made beside it: %+v", made)
		}
		w.delete(o)
	}
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
}

// What an earlier export of the name has left belongs to that one, until the garbage collector removes it.
func madeAgain(w *world) {
	w.boundClaim("disk")
	first := w.export(gen.ClaimSource("disk"))
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	old := w.children()
	w.delete(first)
	w.gone(first)
	w.export(gen.ClaimSource("disk"))
	w.reaches("Pending", exportv1.ReasonForeign, "does not belong to this export")
	for _, o := range old {
		w.delete(o)
	}
	pod := w.pod()
	w.serves(pod)
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	for _, o := range w.children() {
		if !metav1.IsControlledBy(o, wait(w, &exportv1.VirtualMachineExport{ObjectMeta: gen.Meta(w.ns, "e")}, exists)) {
			w.Errorf("%T %s is of %+v", o, o.GetName(), o.GetOwnerReferences())
		}
	}
}

func timeIsUp(w *world) {
	w.boundClaim("disk")
	e := w.export(gen.ClaimSource("disk"), gen.SetTTL(time.Hour))
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	w.later(59 * time.Minute)
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	w.later(2 * time.Minute)
	w.gone(e)
	controlplane.Eventually(w.T, func() error {
		events := &eventsv1.EventList{}
		if err := w.admin.List(w.Context(), events, client.InNamespace(w.ns)); err != nil {
			return err
		}
		for i := range events.Items {
			if events.Items[i].Reason == "ExportExpired" && events.Items[i].Regarding.UID == e.UID {
				return nil
			}
		}
		return fmt.Errorf("no word of it in %d events", len(events.Items))
	})
}

func moreTime(w *world) {
	w.boundClaim("disk")
	e := w.export(gen.ClaimSource("disk"), gen.SetTTL(time.Hour))
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	controlplane.Update(w.T, w.user, e, false, gen.SetTTL(3*time.Hour))
	w.later(2 * time.Hour)
	until := e.CreationTimestamp.Add(3 * time.Hour)
	wait(w, e, func(e *exportv1.VirtualMachineExport) error {
		if !e.Status.TTLExpirationTime.Time.Equal(until) {
			return fmt.Errorf("expires %s, want %s", e.Status.TTLExpirationTime, until)
		}
		return nil
	})
	w.later(2 * time.Hour)
	w.gone(e)
}

func featureGate(w *world) {
	kv := &kubevirtv1.KubeVirt{ObjectMeta: gen.Meta(w.ns, layout.Configuration)}
	gates := func(gates ...string) {
		controlplane.Update(w.T, w.admin, kv, false, func(kv *kubevirtv1.KubeVirt) { kv.Spec.Configuration.DeveloperConfiguration.FeatureGates = gates })
	}
	gates(kubevirtv1.IncrementalBackup)
	w.export(gen.ClaimSource("disk"))
	w.reaches("Pending", exportv1.ReasonGateDisabled, "Feature gate VMExport is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt "+w.ns+"/kubevirt")
	w.boundClaim("disk") // only now: the controller may have seen the export before the gate
	w.later(time.Second)
	controlplane.Consistently(w.T, time.Second, func() error {
		if made := w.children(); len(made) > 0 {
			return fmt.Errorf("%+v", made)
		}
		return nil
	})
	gates(kubevirtv1.VMExport)
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
}

// Two months pass, some hours at a time. Whenever somebody looks, the certificate is one that the authorities in status
// verify, and it has not ended.
func rotation(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"), gen.SetTTL(365*24*time.Hour))
	w.serves(w.pod())
	e := w.reaches("Ready", exportv1.ReasonPodReady, "")
	leaf, err := w.certificate(e)
	if err != nil {
		w.Fatal(err)
	}
	first := e.Status.Links.Internal.Cert
	renewed := 0
	for range 80 {
		w.later(23 * time.Hour)
		controlplane.Eventually(w.T, func() error {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(e), e); err != nil {
				return err
			}
			now, err := w.certificate(e)
			if err != nil {
				return err
			}
			if bytes.Equal(now.Raw, leaf.Raw) {
				return fmt.Errorf("the certificate ends %s and is not renewed", now.NotAfter)
			}
			// It is not there before status has what verifies it.
			if err := w.verify(e); err != nil {
				w.Fatal(err)
			}
			leaf = now
			renewed++
			return nil
		})
	}
	w.reaches("Ready", exportv1.ReasonPodReady, "")
	if last := e.Status.Links.Internal.Cert; first == last || renewed != 80 {
		w.Errorf("%d renewals, the same authorities after %d days", renewed, 80*23/24)
	}
	if pod := w.pod(); pod.Generation > 1 {
		w.Errorf("the pod has changed: %+v", pod.Spec)
	}
}

func damagedChildren(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	pod := w.pod()
	w.serves(pod)
	e := w.reaches("Ready", exportv1.ReasonPodReady, "")

	token := &corev1.Secret{ObjectMeta: gen.Meta(w.ns, "export-token-e")}
	controlplane.Update(w.T, w.admin, token, false, func(s *corev1.Secret) { s.Data = nil })
	certificate := wait(w, &corev1.Secret{ObjectMeta: gen.Meta(w.ns, "virt-export-e-cert")}, exists)
	w.delete(certificate)
	authorities := wait(w, &corev1.Secret{ObjectMeta: gen.Meta(w.ns, AuthoritySecret)}, exists)
	w.delete(authorities)
	service := &corev1.Service{ObjectMeta: gen.Meta(w.ns, "virt-export-e")}
	controlplane.Update(w.T, w.admin, service, false, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"mine": "yes"} })

	w.later(lookEvery)
	wait(w, token, func(s *corev1.Secret) error {
		if len(s.Data["token"]) != 20 {
			return fmt.Errorf("token %q", s.Data["token"])
		}
		return nil
	})
	wait(w, service, func(s *corev1.Service) error {
		if s.Spec.Selector[layout.LabelExport] != string(e.UID) {
			return fmt.Errorf("selects %v", s.Spec.Selector)
		}
		return nil
	})
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		return w.verify(e)
	})
	if now := w.pod(); now.UID != pod.UID {
		w.Error("the pod was replaced")
	}
}

func refusal(w *world) {
	limits := &corev1.LimitRange{ObjectMeta: gen.Meta(w.ns, "small"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")},
	}}}}
	w.create(limits)
	probe := gen.Meta(w.ns, "probe")
	controlplane.Eventually(w.T, func() error { // the API server enforces it after a moment
		in := claimInput()
		p := exportPod(in.Export, in.Source, "t", Image{Name: "probe"})
		p.ObjectMeta = probe
		if err := w.admin.Create(w.Context(), p, client.DryRunAll); err == nil {
			return fmt.Errorf("admitted")
		}
		return nil
	})
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	e := w.reaches("Pending", exportv1.ReasonRefused, "maximum memory usage per Container is 1Mi")
	// Tries do not become writes: each would bring the next try forward.
	version := e.ResourceVersion
	time.Sleep(time.Second)
	if now := w.reaches("Pending", exportv1.ReasonRefused, ""); now.ResourceVersion != version {
		w.Errorf("status is written at each try: %+v", now.Status)
	}
	w.delete(limits)
	w.serves(w.pod())
	w.reaches("Ready", exportv1.ReasonPodReady, "")
}

// The garbage collector deletes what belongs to a deleted object. It has to know all of it.
func everythingIsOwned(w *world) {
	w.boundClaim("disk")
	w.export(gen.ClaimSource("disk"))
	w.serves(w.pod())
	e := w.reaches("Ready", exportv1.ReasonPodReady, "")
	var pods corev1.PodList
	var services corev1.ServiceList
	var secrets corev1.SecretList
	for _, list := range []client.ObjectList{&pods, &services, &secrets} {
		if err := w.admin.List(w.Context(), list, client.InNamespace(w.ns)); err != nil {
			w.Fatal(err)
		}
	}
	var all []client.Object
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	for i := range services.Items {
		all = append(all, &services.Items[i])
	}
	for i := range secrets.Items {
		if secrets.Items[i].Name != AuthoritySecret { // in an installation it is in Varve's namespace
			all = append(all, &secrets.Items[i])
		}
	}
	if len(all) != 4 {
		w.Errorf("%d objects, want a pod, a service and two secrets", len(all))
	}
	for _, o := range all {
		if !metav1.IsControlledBy(o, e) || len(o.GetOwnerReferences()) != 1 || len(o.GetFinalizers()) > 0 {
			w.Errorf("%T %s: owners %+v, finalizers %v", o, o.GetName(), o.GetOwnerReferences(), o.GetFinalizers())
		}
	}
	if len(e.Finalizers) > 0 {
		w.Errorf("finalizers %v", e.Finalizers)
	}
	w.delete(e)
	w.gone(e)
}
