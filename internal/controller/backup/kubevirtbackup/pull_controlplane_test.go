//go:build controlplane

package kubevirtbackup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	upstream "kubevirt.io/api/backup/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/controller/backup/tunnelkey"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// tunnelKey makes the key of the installation, which the tests of this package share.
func (l *lab) tunnelKey() {
	l.Helper()
	key := &corev1.Secret{ObjectMeta: gen.Meta(controlplane.SystemNamespace, tunnelkey.Secret), Data: map[string][]byte{tunnelkey.DataKey: []byte(strings.Repeat("k", 32))}}
	l.must(ignoreExists(cluster.Client(l.T, controlplane.Admin).Create(l.Context(), key)))
}

func (l *lab) clientsToken() {
	l.Helper()
	l.must(l.varve.Create(l.Context(), &corev1.Secret{ObjectMeta: l.named("clients"), Data: map[string][]byte{"token": []byte("the clients' token")}}))
}

func serving(s *backupv1.VirtualMachineBackupStatus) {
	serves := backupstate.Serving("node-1")
	s.Phase, s.Reason, s.Message = backupv1.BackupServing, serves.Reason, serves.Message
	s.StartTimestamp = &metav1.Time{Time: time.Now()}
	s.BackupType, s.Type = backupv1.Full, backupv1.Full
	if s.BaseCheckpoint != nil {
		s.BackupType, s.Type = backupv1.Incremental, backupv1.Incremental
	}
	s.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", VolumeName: "root", DiskTarget: "vda", Type: s.BackupType}}
}

// export plays the controller of exports for a backup's export: it serves.
func (l *lab) export(b *backupv1.VirtualMachineBackup, not types.UID) *exportv1.VirtualMachineExport {
	l.Helper()
	export := &exportv1.VirtualMachineExport{ObjectMeta: l.named(layout.BackupExport(b.Name))}
	controlplane.Eventually(l.T, func() error {
		if err := l.read(export); err != nil {
			return err
		}
		if export.UID == not || export.DeletionTimestamp != nil {
			return fmt.Errorf("still %s", export.UID)
		}
		return nil
	})
	service := &corev1.Service{ObjectMeta: l.named("service-of-" + string(export.UID[:8]))}
	service.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(export, exportv1.GroupVersion.WithKind("VirtualMachineExport"))}
	service.Spec.Ports = []corev1.ServicePort{{Name: "tunnel", Port: 9090}}
	l.must(l.varve.Create(l.Context(), service))
	controlplane.Update(l.T, l.varve, export, true, func(e *exportv1.VirtualMachineExport) {
		e.Status.Phase, e.Status.ServiceName = exportv1.ExportReady, service.Name
		e.Status.Links = &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{Cert: "PEM", Backups: []exportv1.VirtualMachineExportBackup{{
			Name: "root",
			Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
				{Endpoint: exportv1.EndpointMap, URL: "https://e/" + string(export.UID) + "/map"}, {Endpoint: exportv1.EndpointData, URL: "https://e/" + string(export.UID) + "/data"},
			},
		}}}}
	})
	return export
}

// collectGarbage plays the garbage collector, which the control plane does not have, with a deleted export.
func (l *lab) collectGarbage(b *backupv1.VirtualMachineBackup) {
	l.Helper()
	export := &exportv1.VirtualMachineExport{ObjectMeta: l.named(layout.BackupExport(b.Name))}
	controlplane.Eventually(l.T, func() error {
		if err := l.read(export); err != nil {
			return client.IgnoreNotFound(err)
		}
		if export.DeletionTimestamp == nil {
			return fmt.Errorf("export %s is not deleted", export.Name)
		}
		export.Finalizers = nil
		return client.IgnoreNotFound(l.varve.Update(l.Context(), export))
	})
	l.goes(export)
}

// end takes a backup that is Copied or CopyFailed to its end, and sees that nothing of it is left.
func (l *lab) end(b *backupv1.VirtualMachineBackup) {
	l.Helper()
	l.reaches(b, backupv1.BackupPruning, "")
	secret := &corev1.Secret{ObjectMeta: l.named(b.Status.PullTunnelSecret)}
	l.node(b, pruned)
	l.mount(0)
	l.collectGarbage(b)
	controlplane.Eventually(l.T, func() error {
		if err := l.varve.Get(l.Context(), client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("secret %s is there (%v)", secret.Name, err)
		}
		return nil
	})
}

// A client of KubeVirt's released API pulls a full backup and an incremental one, aborts one, and sees one fail.
func TestPull_clientsOfTheReleasedAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.tunnelKey()
	l.clientsToken()
	l.claim("target", corev1.PersistentVolumeFilesystem)
	v := newVendor(l)
	l.tracker("tracker")
	create := func(name string) (*upstream.VirtualMachineBackup, *backupv1.VirtualMachineBackup) {
		b := &upstream.VirtualMachineBackup{ObjectMeta: l.named(name), Spec: upstream.VirtualMachineBackupSpec{
			Source: corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"), Kind: "VirtualMachineBackupTracker", Name: "tracker"},
			Mode:   ptr.To(upstream.PullMode), PvcName: ptr.To("target"), TokenSecretRef: "clients", TTLDuration: &metav1.Duration{Duration: time.Hour},
		}}
		l.must(v.client.Create(t.Context(), b))
		ours := &backupv1.VirtualMachineBackup{ObjectMeta: l.named(name)}
		l.must(l.read(ours))
		l.toStarting(ours)
		return b, ours
	}
	checkpoint := ""
	for _, want := range []upstream.BackupType{upstream.Full, upstream.Incremental} {
		b, ours := create(fmt.Sprintf("of-type-%.4s", map[upstream.BackupType]string{upstream.Full: "full", upstream.Incremental: "incr"}[want]))
		secret := &corev1.Secret{ObjectMeta: l.named(ours.Status.PullTunnelSecret)}
		l.must(l.varve.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
		l.node(ours, serving)
		first := l.export(ours, "")
		if d := first.Spec.TTLDuration; d == nil || d.Duration > time.Hour || d.Duration < 50*time.Minute || *first.Spec.TokenSecretRef != "clients" {
			t.Errorf("export %+v", first.Spec)
		}
		v.waitFor(b, string(upstream.ConditionExportReady))
		v.waitFor(b, backupv1.ConditionReady)
		endpoints := func() upstream.BackupVolumeInfo { return b.Status.IncludedVolumes[0] }
		if b.Status.Type != want || ptr.Deref(b.Status.EndpointCert, "") != "PEM" || endpoints().VolumeName != "root" || endpoints().DataEndpoint != "https://e/"+string(first.UID)+"/data" {
			t.Errorf("%+v", b.Status)
		}
		l.must(l.read(ours))
		if p := ours.Status.PullTunnel; p == nil || !strings.HasSuffix(p.Address, ":9090") || p.Authorities != "PEM" {
			t.Errorf("tunnel %+v", p)
		}
		// Somebody deletes the export: another one takes its place.
		l.must(l.user.Delete(t.Context(), first))
		second := l.export(ours, first.UID)
		controlplane.Eventually(t, func() error {
			if err := v.client.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil || endpoints().DataEndpoint != "https://e/"+string(second.UID)+"/data" {
				return fmt.Errorf("%+v, %w", b.Status, err)
			}
			return nil
		})
		l.must(v.client.Delete(t.Context(), b))
		// The tracker moves when the node says that the job is finished.
		l.reaches(ours, backupv1.BackupServing, "")
		if meta.IsStatusConditionTrue(ours.Status.Conditions, backupv1.ConditionAborting) {
			t.Errorf("%+v", ours.Status.Conditions)
		}
		l.node(ours, func(s *backupv1.VirtualMachineBackupStatus) {
			s.Phase, s.Reason = backupv1.BackupCopied, backupv1.ReasonFinishing
		})
		l.end(ours)
		l.goes(ours)
		tracker := &upstream.VirtualMachineBackupTracker{ObjectMeta: l.named("tracker")}
		l.must(v.client.Get(t.Context(), client.ObjectKeyFromObject(tracker), tracker))
		if c := tracker.Status.LatestCheckpoint; c == nil || c.Name != ours.Status.CheckpointName || len(c.Volumes) != 1 {
			t.Errorf("tracker %+v", tracker.Status)
		}
		checkpoint = ours.Status.CheckpointName
	}
	latest := func() string {
		tracker := &backupv1.VirtualMachineBackupTracker{ObjectMeta: l.named("tracker")}
		l.must(l.read(tracker))
		return tracker.Status.LatestCheckpoint.Name
	}

	b, ours := create("aborted")
	l.node(ours, serving)
	l.must(v.client.Delete(t.Context(), b))
	v.waitFor(b, string(upstream.ConditionAborting))
	l.node(ours, failedWith(backupv1.ReasonAborted))
	l.end(ours)
	l.goes(ours)

	b, ours = create("fails")
	l.node(ours, serving)
	l.export(ours, "")
	v.waitFor(b, backupv1.ConditionReady)
	l.node(ours, failedWith(backupv1.ReasonScratchFull))
	l.end(ours)
	l.reaches(ours, backupv1.BackupFailed, backupv1.ReasonScratchFull)
	v.waitFor(b, backupv1.ConditionFailed)
	if latest() != checkpoint || ours.Status.Cert != "" || ours.Status.IncludedVolumes[0].DataEndpoint != "" {
		t.Errorf("the tracker has %s, %+v", latest(), ours.Status)
	}
}

func TestPull_requestsThatAreRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	pull := func(name string, edit func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
		b := gen.Backup(l.named(name), gen.SetTracker("none"), gen.SetBackupMode(backupv1.PullMode))
		b.Spec.TokenSecretRef = ptr.To("clients")
		edit(b)
		return b
	}
	for want, edit := range map[string]func(*backupv1.VirtualMachineBackup){
		"spec.tokenSecretRef": func(b *backupv1.VirtualMachineBackup) { b.Spec.TokenSecretRef = nil },
		"spec.ttl: Invalid":   func(b *backupv1.VirtualMachineBackup) { b.Spec.TTL = &metav1.Duration{} },
		"must be a positive":  func(b *backupv1.VirtualMachineBackup) { b.Spec.TTLDuration = &metav1.Duration{Duration: -time.Hour} },
		"mean the same": func(b *backupv1.VirtualMachineBackup) {
			b.Spec.TTL, b.Spec.TTLDuration = &metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: time.Minute}
		},
		"spec.mode: Unsupported": func(b *backupv1.VirtualMachineBackup) { b.Spec.Mode = "PULL" },
	} {
		if err := l.user.Create(t.Context(), pull("wrong", edit)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	b := pull("right", func(b *backupv1.VirtualMachineBackup) {
		b.Spec.TTL, b.Spec.TTLDuration = &metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: 60 * time.Minute}
	})
	l.must(l.user.Create(t.Context(), b))
	change := func(edit func(*backupv1.VirtualMachineBackupSpec)) error {
		l.must(l.read(b))
		before := b.DeepCopy()
		edit(&b.Spec)
		return l.user.Patch(t.Context(), b, client.MergeFrom(before))
	}
	l.must(change(func(s *backupv1.VirtualMachineBackupSpec) {
		s.TTL, s.TTLDuration = nil, &metav1.Duration{Duration: 3 * time.Hour}
	}))
	l.must(change(func(s *backupv1.VirtualMachineBackupSpec) {
		s.TTL, s.TTLDuration = &metav1.Duration{Duration: time.Hour}, nil
	}))
	for name, edit := range map[string]func(*backupv1.VirtualMachineBackupSpec){
		"claim":    func(s *backupv1.VirtualMachineBackupSpec) { s.PVCName = "other" },
		"token":    func(s *backupv1.VirtualMachineBackupSpec) { s.TokenSecretRef = ptr.To("other") },
		"mode":     func(s *backupv1.VirtualMachineBackupSpec) { s.Mode = backupv1.PushMode },
		"spelling": func(s *backupv1.VirtualMachineBackupSpec) { s.Mode = "Pull" },
		"tracker":  func(s *backupv1.VirtualMachineBackupSpec) { s.BackupTracker = "other" },
		"quiesce":  func(s *backupv1.VirtualMachineBackupSpec) { s.SkipQuiesce = true },
		"full":     func(s *backupv1.VirtualMachineBackupSpec) { s.ForceFullBackup = true },
		"source": func(s *backupv1.VirtualMachineBackupSpec) {
			s.BackupTracker, s.Source = "", &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: "vm"}
		},
	} {
		if err := change(edit); err == nil || !strings.Contains(err.Error(), "spec is immutable, except for ttl") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTunnelKey_livesWithItsGate has a configuration of its own.
func TestTunnelKey_livesWithItsGate(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	admin := cluster.Client(t, controlplane.Admin)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mgr := cluster.ManagerFor(t, cluster.ConfigFor(controlplane.Controller), func(o *ctrl.Options) {
		o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{ns: {}}}
	})
	must(tunnelkey.Setup(mgr, tunnelkey.Options{Configuration: types.NamespacedName{Namespace: ns, Name: layout.Configuration}}))
	controlplane.StartManager(t, mgr)
	configuration := &kubevirtv1.KubeVirt{ObjectMeta: gen.Meta(ns, layout.Configuration)}
	gates := func(gates ...string) {
		t.Helper()
		controlplane.Update(t, admin, configuration, false, func(k *kubevirtv1.KubeVirt) {
			k.Spec.Configuration.DeveloperConfiguration = &kubevirtv1.DeveloperConfiguration{FeatureGates: gates}
		})
	}
	key := func(ok func([]byte) bool) (now []byte) {
		t.Helper()
		controlplane.Eventually(t, func() (err error) {
			if now, err = tunnelkey.Read(t.Context(), admin, ns); err == nil && !ok(now) {
				err = fmt.Errorf("a key of %d bytes", len(now))
			}
			return err
		})
		return now
	}
	there := func(k []byte) bool { return len(k) == 32 }
	must(admin.Create(t.Context(), configuration))
	gates(kubevirtv1.IncrementalBackup)
	first := key(there)
	gates(kubevirtv1.VMExport, kubevirtv1.IncrementalBackup)
	gates(kubevirtv1.VMExport)
	key(func(k []byte) bool { return k == nil })
	gates(kubevirtv1.IncrementalBackup)
	second := key(there)
	if string(first) == string(second) {
		t.Error("the key came back")
	}
	// A key that is no key is replaced.
	secret := &corev1.Secret{ObjectMeta: gen.Meta(ns, tunnelkey.Secret)}
	controlplane.Update(t, admin, secret, false, func(s *corev1.Secret) { s.Data = map[string][]byte{tunnelkey.DataKey: []byte("short")} })
	gates(kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes)
	key(there)
}
