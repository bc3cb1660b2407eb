package kubevirtbackup

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

func (w *world) pullInput(in *input) pullInput {
	p := pullInput{Token: w.token, Key: w.key, TunnelSecret: w.secrets[in.tunnelSecretName()], Export: w.exports[layout.BackupExport(in.Backup.Name)]}
	if p.Export != nil {
		p.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(p.Export, exportv1.GroupVersion.WithKind("VirtualMachineExport")),
		}}}
		p.Service.Spec.ClusterIP = "10.96.0.9"
	}
	return p
}

func (w *world) performPull(b *backupv1.VirtualMachineBackup, d decision) {
	switch d.Step {
	case stepCreateTunnelSecret:
		w.secrets[d.Secret.Name] = d.Secret
	case stepDeleteTunnelSecret:
		delete(w.secrets, d.Secret.Name)
	case stepCreateExport:
		d.Export.UID, d.Export.CreationTimestamp = w.uid(), metav1.NewTime(w.now)
		w.exports[d.Export.Name] = d.Export
	case stepExtendExport:
		e := w.exports[layout.BackupExport(b.Name)]
		e.Spec.TTLDuration = &metav1.Duration{Duration: b.CreationTimestamp.Add(b.Spec.Lifetime()).Sub(e.CreationTimestamp.Time)}
	case stepDeleteExport:
		delete(w.exports, d.Export.Name)
	case stepNone:
	default:
		panic("unknown step " + d.Step)
	}
}

// createPull creates a backup in pull mode.
func (w *world) createPull(name string) *backupv1.VirtualMachineBackup {
	b := w.create(name, true)
	b.Spec.Mode, b.Spec.TokenSecretRef = backupv1.PullMode, ptr.To("token")
	return b
}

// serving takes a backup in pull mode to Serving, with an export that does not serve yet.
func (w *world) serving(b *backupv1.VirtualMachineBackup) {
	w.starting(b)
	b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupServing, backupv1.ReasonServing, "serves"
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
	w.settle(b)
}

// exportServes plays the controller of exports.
func (w *world) exportServes(b *backupv1.VirtualMachineBackup) {
	e := w.exports[layout.BackupExport(b.Name)]
	e.Status.Phase = exportv1.ExportReady
	link := &exportv1.VirtualMachineExportLink{Cert: "internal", Backups: []exportv1.VirtualMachineExportBackup{{
		Name: "root",
		Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
			{Endpoint: exportv1.EndpointMap, URL: "https://e/exports/root/map"}, {Endpoint: exportv1.EndpointData, URL: "https://e/exports/root/data"},
		},
	}}}
	e.Status.Links = &exportv1.VirtualMachineExportLinks{Internal: link}
}

// ready takes a backup in pull mode to where its endpoints answer.
func (w *world) ready(b *backupv1.VirtualMachineBackup) {
	w.serving(b)
	w.exportServes(b)
	w.settle(b)
}

// cleanUp takes a backup to its end, with a node that cleans up.
func (w *world) cleanUp(b *backupv1.VirtualMachineBackup) {
	for range 5 {
		w.settle(b)
		w.mount()
		if b.Status.Phase == backupv1.BackupPruning {
			b.Status.Phase = backupv1.BackupPruned
		}
	}
}

func readyCondition(b *backupv1.VirtualMachineBackup) *metav1.Condition {
	return meta.FindStatusCondition(b.Status.Conditions, backupv1.ConditionReady)
}

func TestPull_becomesReady(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	b.Spec.TTL = &metav1.Duration{Duration: time.Hour}
	w.now = w.now.Add(time.Minute)
	w.starting(b)
	secret := w.secrets[b.Status.PullTunnelSecret]
	if secret == nil || !metav1.IsControlledBy(secret, b) || string(secret.Data["token"]) != string(tunnel.Token(w.key, string(b.UID))) || !ptr.Deref(secret.Immutable, false) {
		t.Fatalf("secret %s: %v", b.Status.PullTunnelSecret, secret)
	}
	b.Status.Phase, b.Status.Reason = backupv1.BackupServing, backupv1.ReasonServing
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
	if d := w.settle(b); !d.Wake.Equal(w.now.Add(reconcile.PollInterval(0))) {
		t.Errorf("looks again at %s", d.Wake)
	}
	e := w.exports["backup-export-b"]
	if e == nil || !metav1.IsControlledBy(e, b) || *e.Spec.TokenSecretRef != "token" || e.Spec.Source.Name != "b" || (e.Spec.TTLDuration.Duration-59*time.Minute).Abs() > 2*time.Second {
		t.Fatalf("export %+v", e)
	}
	if c := readyCondition(b); c == nil || c.Status != metav1.ConditionFalse || c.Reason != backupv1.ReasonExportPending || b.Status.PullTunnel != nil {
		t.Errorf("%+v, tunnel %v", c, b.Status.PullTunnel)
	}
	// The launcher can connect before the export serves: that is how it comes to serve.
	e.Status.Links = &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{Cert: "internal"}}
	e.Status.Conditions = []exportv1.Condition{{Type: exportv1.ConditionReady, Message: "Pod p is being created."}}
	w.settle(b)
	want := &backupv1.PullTunnel{Address: "10.96.0.9:9090", ServerName: podspec.ServiceHosts("ns", "backup-export-b")[0], Authorities: "internal"}
	if diff := cmp.Diff(want, b.Status.PullTunnel); diff != "" {
		t.Error(diff)
	}
	if c := readyCondition(b); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "Pod p is being created.") {
		t.Errorf("%+v", c)
	}

	w.exportServes(b)
	if d := w.settle(b); !d.Wake.Equal(b.CreationTimestamp.Add(time.Hour)) {
		t.Errorf("looks again at %s", d.Wake)
	}
	v := b.Status.IncludedVolumes[0]
	if c := readyCondition(b); c.Status != metav1.ConditionTrue || b.Status.Cert != "internal" || b.Status.EndpointCert != "internal" ||
		v.MapEndpoint != "https://e/exports/root/map" || v.DataEndpoint != "https://e/exports/root/data" {
		t.Errorf("%+v, %+v", c, b.Status)
	}
	if !meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionExportReady) || !meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionProgressing) {
		t.Errorf("%+v", b.Status.Conditions)
	}

	// What can be reached from outside goes first.
	external := e.Status.Links.Internal.DeepCopy()
	external.Cert, external.Backups[0].Endpoints[1].URL = "external", "https://proxy/data"
	e.Status.Links.External = external
	w.settle(b)
	if b.Status.Cert != "external" || b.Status.IncludedVolumes[0].DataEndpoint != "https://proxy/data" || b.Status.PullTunnel.Authorities != "internal" {
		t.Errorf("%+v", b.Status)
	}
}

func TestPull_isNotReadyWithoutEndpointsAndCertificates(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*exportv1.VirtualMachineExport){
		"no links":           func(e *exportv1.VirtualMachineExport) { e.Status.Links = nil },
		"an empty cert":      func(e *exportv1.VirtualMachineExport) { e.Status.Links.Internal.Cert = "" },
		"no backups":         func(e *exportv1.VirtualMachineExport) { e.Status.Links.Internal.Backups = nil },
		"another volume":     func(e *exportv1.VirtualMachineExport) { e.Status.Links.Internal.Backups[0].Name = "other" },
		"no map":             func(e *exportv1.VirtualMachineExport) { e.Status.Links.Internal.Backups[0].Endpoints[0].URL = "" },
		"its pod is pending": func(e *exportv1.VirtualMachineExport) { e.Status.Phase = exportv1.ExportPending },
		"it is being deleted": func(e *exportv1.VirtualMachineExport) {
			e.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		},
		"somebody else's": func(e *exportv1.VirtualMachineExport) { e.OwnerReferences[0].UID = "other" },
	} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		w.ready(b)
		if c := readyCondition(b); c.Status != metav1.ConditionTrue {
			t.Fatalf("%+v", c)
		}
		spoil(w.exports["backup-export-b"])
		w.settle(b)
		if c := readyCondition(b); c.Status != metav1.ConditionFalse || c.Message == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestPull_exportDeletedBehindItsBackIsCreatedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	old := w.exports["backup-export-b"].UID
	w.exports["backup-export-b"].DeletionTimestamp = &metav1.Time{Time: w.now}
	if d := w.settle(b); readyCondition(b).Status != metav1.ConditionFalse || !d.Wake.Equal(w.now.Add(reconcile.PollInterval(0))) {
		t.Errorf("%+v, again at %s", readyCondition(b), d.Wake)
	}
	delete(w.exports, "backup-export-b")
	w.settle(b)
	if e := w.exports["backup-export-b"]; e == nil || e.UID == old {
		t.Fatalf("export %+v", e)
	}
	w.exportServes(b)
	if w.settle(b); readyCondition(b).Status != metav1.ConditionTrue {
		t.Errorf("%+v", readyCondition(b))
	}
}

func TestPull_secretDeletedBehindItsBackIsCreatedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	name := b.Status.PullTunnelSecret
	token := w.secrets[name].Data["token"]
	delete(w.secrets, name)
	w.settle(b)
	if s := w.secrets[name]; s == nil || !bytes.Equal(s.Data["token"], token) {
		t.Errorf("%v, want the token that the launcher has", s)
	}
	// Without the key, which went with its gate, the backup goes on as it is.
	delete(w.secrets, name)
	w.key = nil
	if w.settle(b); b.Status.Phase != backupv1.BackupServing {
		t.Errorf("%s: %s", b.Status.Phase, b.Status.Message)
	}
}

// An export whose pod is on a node that is gone does not keep the machine's next backup waiting.
func TestPull_endsWhenItsExportDoesNotGo(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	b.Finalizers = append(b.Finalizers, "test") // to look at it when it has ended
	w.delete(b)
	w.copied(b)
	w.settle(b)
	b.Status.Phase = backupv1.BackupPruned
	w.settleUntil(b, stepDeleteExport)
	e := w.exports["backup-export-b"]
	e.DeletionTimestamp = &metav1.Time{Time: w.now}
	w.mount()
	if d := w.settle(b); b.Status.Phase != backupv1.BackupPruned || !d.Wake.Equal(w.now.Add(reconcile.PollInterval(0))) {
		t.Fatalf("%s, again at %s", b.Status.Phase, d.Wake)
	}
	w.now = w.now.Add(goingLimit)
	if w.settle(b); b.Status.Phase != backupv1.BackupDone || len(w.secrets) != 0 || w.locked() != "" {
		t.Errorf("%s: %s, secrets %v", b.Status.Phase, b.Status.Message, w.secrets)
	}
}

func TestPull_timeCanBeChanged(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	b.Spec.TTLDuration = &metav1.Duration{Duration: 5 * time.Hour}
	if d := w.settle(b); !d.Wake.Equal(b.CreationTimestamp.Add(5 * time.Hour)) {
		t.Errorf("looks again at %s", d.Wake)
	}
	e := w.exports["backup-export-b"]
	if end := e.CreationTimestamp.Add(e.Spec.TTLDuration.Duration); end.Sub(b.CreationTimestamp.Add(5*time.Hour)).Abs() > 2*time.Second {
		t.Errorf("the export ends at %s", end)
	}
	w.now = w.now.Add(4 * time.Hour)
	if w.settle(b); b.Status.Phase != backupv1.BackupServing {
		t.Errorf("%s: %s", b.Status.Phase, b.Status.Message)
	}
	b.Spec.TTLDuration.Duration = time.Hour
	if w.settle(b); b.Status.Phase != backupv1.BackupPruning || b.Status.Reason != backupv1.ReasonTTLExpired {
		t.Errorf("%s: %s", b.Status.Phase, b.Status.Message)
	}
}

// How a backup ends that is deleted, or whose time is up.
func TestPull_ends(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		at   func(*world, *backupv1.VirtualMachineBackup)
		then func(*world, *backupv1.VirtualMachineBackup)
		// phase and reason after the controller has done what it can
		phase  backupv1.BackupPhase
		reason string
	}{
		"time is up while it waits":             {func(w *world, b *backupv1.VirtualMachineBackup) { w.claim = nil; w.settle(b) }, expire, backupv1.BackupFailed, backupv1.ReasonTTLExpired},
		"time is up while it attaches":          {func(w *world, b *backupv1.VirtualMachineBackup) { w.settle(b) }, expire, backupv1.BackupFailed, backupv1.ReasonTTLExpired},
		"time is up while it starts":            {func(w *world, b *backupv1.VirtualMachineBackup) { w.starting(b) }, expire, backupv1.BackupPruning, backupv1.ReasonTTLExpired},
		"time is up while it serves":            {(*world).serving, expire, backupv1.BackupPruning, backupv1.ReasonTTLExpired},
		"time is up while it is ready":          {(*world).ready, expire, backupv1.BackupPruning, backupv1.ReasonTTLExpired},
		"time is up after clients have read it": {func(w *world, b *backupv1.VirtualMachineBackup) { w.ready(b); w.delete(b); w.copied(b) }, expire, backupv1.BackupPruning, backupv1.ReasonFinishing},
		"deleted, then time is up": {(*world).ready, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.now = b.CreationTimestamp.Add(backupv1.DefaultTTL - time.Second)
			w.delete(b)
			w.settle(b)
			w.now = w.now.Add(time.Minute)
		}, backupv1.BackupServing, backupv1.ReasonServing},
		"scratch claim deleted while it is ready": {(*world).ready, func(w *world, _ *backupv1.VirtualMachineBackup) { w.claim = nil }, backupv1.BackupPruning, backupv1.ReasonTargetGone},
		"scratch claim deleted after clients have read it": {
			func(w *world, b *backupv1.VirtualMachineBackup) { w.ready(b); w.delete(b); w.copied(b) },
			func(w *world, _ *backupv1.VirtualMachineBackup) { w.claim = nil }, backupv1.BackupPruning, backupv1.ReasonFinishing,
		},
		"node is silent after a deletion": {(*world).ready, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.delete(b)
			w.settle(b)
			w.now = w.now.Add(2 * time.Minute)
		}, backupv1.BackupPruning, backupv1.ReasonAborted},
		"idle for longer than a copy may stall": {(*world).ready, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(time.Hour) }, backupv1.BackupServing, backupv1.ReasonServing},
	} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		test.at(w, b)
		test.then(w, b)
		if w.settle(b); b.Status.Phase != test.phase || b.Status.Reason != test.reason {
			t.Errorf("%s: %s, %s: %s", name, b.Status.Phase, b.Status.Reason, b.Status.Message)
		}
	}
}

func expire(w *world, b *backupv1.VirtualMachineBackup) {
	w.now = b.CreationTimestamp.Add(backupv1.DefaultTTL)
}

// The condition Ready at its deletion decides how a backup ends: nothing that happens to its export later changes that.
func TestPull_deletionFixesReady(t *testing.T) {
	t.Parallel()
	for _, ready := range []bool{true, false} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		w.serving(b)
		if ready {
			w.exportServes(b)
			w.settle(b)
		}
		w.delete(b)
		w.exportServes(b)
		if ready {
			delete(w.exports, "backup-export-b")
		}
		w.settle(b)
		if got := meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionReady); got != ready {
			t.Errorf("Ready was %t, and is %t", ready, got)
		}
		if aborting := meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionAborting); aborting == ready {
			t.Errorf("Ready %t, Aborting %t", ready, aborting)
		}
		if ready == (w.exports["backup-export-b"] != nil) {
			t.Errorf("Ready %t: the export of a deleted backup was made or deleted", ready)
		}
	}
}

func TestPull_leavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, *backupv1.VirtualMachineBackup){
		"success": func(w *world, b *backupv1.VirtualMachineBackup) { w.ready(b); w.delete(b); w.copied(b) },
		"failure": func(w *world, b *backupv1.VirtualMachineBackup) {
			w.ready(b)
			b.Status.Phase = backupv1.BackupCopyFailed
		},
		"failure in Attaching": func(w *world, b *backupv1.VirtualMachineBackup) { w.settle(b); expire(w, b) },
		"failure in Pending, after Attaching": func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settle(b)
			w.claim = nil
			w.settle(b)
			w.mount()
			expire(w, b)
		},
		"deletion in Pending, after Attaching": func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settle(b)
			w.claim = nil
			w.settle(b)
			w.delete(b)
		},
	} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		b.Finalizers = []string{"test"} // to look at it when it has ended
		end(w, b)
		w.cleanUp(b)
		if !b.Status.Phase.Final() || len(w.secrets) != 0 || len(w.exports) != 0 || w.locked() != "" || len(w.instance.Spec.UtilityVolumes) != 0 {
			t.Errorf("%s: %s: %s; secrets %v, exports %v, volumes %v", name, b.Status.Phase, b.Status.Message, w.secrets, w.exports, w.instance.Spec.UtilityVolumes)
		}
		s := b.Status
		if s.PullTunnel != nil || s.PullTunnelSecret != "" || s.Cert != "" || len(s.IncludedVolumes) > 0 && s.IncludedVolumes[0].DataEndpoint != "" {
			t.Errorf("%s: %+v", name, s)
		}
		if c := readyCondition(b); c != nil && c.Status != metav1.ConditionFalse {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestPull_waitsForWhatItNeeds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lack            func(*world, *backupv1.VirtualMachineBackup)
		reason, message string
		polls           bool
	}{
		"no gate": {func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Spec.Configuration.DeveloperConfiguration.FeatureGates = []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes}
		}, backupv1.ReasonGateDisabled, "feature gate VMExport", false},
		"no token":       {func(w *world, _ *backupv1.VirtualMachineBackup) { w.token = nil }, backupv1.ReasonTokenSecretNotFound, "Secret token", true},
		"an empty token": {func(w *world, _ *backupv1.VirtualMachineBackup) { w.token.Data["token"] = nil }, backupv1.ReasonTokenSecretNotFound, "give it the key token", true},
		"a short token":  {func(w *world, _ *backupv1.VirtualMachineBackup) { w.token.Data["token"] = []byte("fifteen letters\n") }, backupv1.ReasonTokenSecretInvalid, "at least 16 characters", true},
		"no key":         {func(w *world, _ *backupv1.VirtualMachineBackup) { w.key = nil }, backupv1.ReasonAttaching, "key", true},
		"a foreign secret": {func(w *world, b *backupv1.VirtualMachineBackup) {
			name := layout.TunnelSecret(layout.BackupUtilityVolume(b.UID))
			w.secrets[name] = &corev1.Secret{}
		}, backupv1.ReasonAttaching, "does not belong to this backup", true},
	} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		test.lack(w, b)
		d := w.settle(b)
		if b.Status.Phase != backupv1.BackupPending || b.Status.Reason != test.reason || !strings.Contains(b.Status.Message, test.message) {
			t.Errorf("%s: %s, %s: %s", name, b.Status.Phase, b.Status.Reason, b.Status.Message)
		}
		want := b.CreationTimestamp.Add(backupv1.DefaultTTL)
		if test.polls {
			want = w.now.Add(reconcile.PollInterval(0))
		}
		if !d.Wake.Equal(want) {
			t.Errorf("%s: looks again at %s", name, d.Wake)
		}
	}
}

// kubectl delete vmbackup b --cascade=orphan: the garbage collector takes the owner off the children before it lets the backup go.
func TestPull_orphanedChildrenAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	b.Finalizers = []string{"orphan"}
	w.ready(b)
	w.delete(b)
	for _, s := range w.secrets {
		s.OwnerReferences = nil
	}
	for _, e := range w.exports {
		e.OwnerReferences = nil
	}
	w.copied(b)
	w.cleanUp(b)
	if len(w.secrets) != 0 || len(w.exports) != 0 {
		t.Errorf("%s: %q; left: %d secrets, %d exports", b.Status.Phase, b.Status.Message, len(w.secrets), len(w.exports))
	}
}

// The export's Service is deleted and made again with another address while the launcher is not connected.
func TestPull_looksAgainWhileTheServiceIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	w.exports["backup-export-b"].Status.Phase = exportv1.ExportPending
	w.settle(b)
	in := w.input(b)
	in.Pull.Service = nil
	d := decide(in)
	if d.Step == stepStatus {
		b.Status = *d.Status
		in = w.input(b)
		in.Pull.Service = nil
		d = decide(in)
	}
	if !d.Wake.Equal(w.now.Add(reconcile.PollInterval(0))) {
		t.Errorf("PullTunnel %+v is that of the Service that is gone, and the backup looks again in %s; Services are not watched", b.Status.PullTunnel, d.Wake.Sub(w.now))
	}
}

// A success whose scratch files the node could not remove.
func TestPull_successThatLeavesScratchFilesSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	w.delete(b)
	w.copied(b)
	w.settle(b)
	if b.Status.Phase != backupv1.BackupPruning || b.Status.Result != backupv1.BackupSucceeded {
		t.Fatal(b.Status.Phase, b.Status.Result)
	}
	b.Finalizers = append(b.Finalizers, "test")
	w.now = w.now.Add(w.limits.Pruning + time.Minute) // the handler is away, or the scratch claim's storage hangs
	for range 3 {
		w.settle(b)
		w.mount()
	}
	if !strings.Contains(b.Status.Message, layout.PartialSuffix) {
		t.Errorf("%s: %q says nothing of %s on claim %s", b.Status.Phase, b.Status.Message, b.Status.Directory+layout.PartialSuffix, b.Spec.PVCName)
	}
}

// A backup that has ended says that its scratch claim is nearly full.
func TestPull_scratchLowEndsWithTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	b.Finalizers = []string{"test"}
	w.ready(b)
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionScratchLow, Status: metav1.ConditionTrue, Reason: "Low"})
	w.delete(b)
	w.copied(b)
	w.cleanUp(b)
	if meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionScratchLow) {
		t.Errorf("%s with ScratchSpaceLow=True", b.Status.Phase)
	}
}

// An export that does not go is said to stay.
func TestPull_exportThatStaysIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	b.Finalizers = []string{"test"}
	w.ready(b)
	w.delete(b)
	w.copied(b)
	w.settle(b)
	b.Status.Phase = backupv1.BackupPruned
	w.settleUntil(b, stepDeleteExport)
	w.exports["backup-export-b"].DeletionTimestamp = &metav1.Time{Time: w.now}
	w.mount()
	w.settle(b)
	w.now = w.now.Add(goingLimit)
	w.settle(b)
	if !strings.Contains(b.Status.Message, "backup-export-b") {
		t.Errorf("%s: %q", b.Status.Phase, b.Status.Message)
	}
}

// A handler or a launcher of an older version does not know spec.mode pull, or the field pull of BeginBackup: it pushes to the
// scratch claim and says Copied. Nobody has deleted the backup, and it never was Ready.
func TestPull_copiedWithoutADeletionMovesNoTracker(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.starting(b)
	w.copied(b)
	w.settle(b)
	if w.tracker.Status.LatestCheckpoint != nil || b.Status.Result == backupv1.BackupSucceeded {
		t.Errorf("never deleted, Ready %v: the tracker moved to %+v, result %s", readyCondition(b), w.tracker.Status.LatestCheckpoint, b.Status.Result)
	}
}

// The export is deleted behind its back and the API server refuses the new one (a quota, a webhook that is down): Ready must not
// stay True, because a deletion would then be a success.
func TestPull_readyEndsWhenTheExportCannotBeMadeAgain(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{"export", "secret"} {
		w := newWorld()
		w.track()
		b := w.createPull("b")
		w.ready(b)
		if gone == "export" {
			delete(w.exports, "backup-export-b")
		} else {
			delete(w.secrets, b.Status.PullTunnelSecret)
			w.exports["backup-export-b"].Status.Phase = exportv1.ExportPending // BackupNotReady: its pod was deleted
		}
		for range 5 {
			if decide(w.input(b)).Step == stepStatus {
				w.step(b)
			}
			w.refuse(b, "exceeded quota")
			w.now = w.now.Add(time.Minute)
		}
		if c := readyCondition(b); c.Status == metav1.ConditionTrue {
			t.Errorf("%s gone for 5 minutes: Ready is %s; reason %s: %s", gone, c.Status, b.Status.Reason, b.Status.Message)
		}
	}
}

// The backup takes a token of white space for one, and fixes a point in time; the export does not (virtualmachineexport.hasToken).
func TestPull_tokenOfWhiteSpaceIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.token.Data["token"] = []byte("\n")
	w.settle(b)
	if b.Status.Phase != backupv1.BackupPending {
		t.Errorf("%s: its export will be TokenSecretInvalid until the time is up", b.Status.Phase)
	}
}

// createPulledByDataUploads creates a backup in pull mode that mover pods read.
func (w *world) createPulledByDataUploads(name string) *backupv1.VirtualMachineBackup {
	b := w.create(name, true)
	b.Spec.Mode, b.Spec.PulledBy = backupv1.PullMode, backupv1.PulledByDataUploads
	return b
}

func TestPulledByDataUploads_isReadyWithoutExport(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	w.token = nil // no client has one
	b := w.createPulledByDataUploads("b")
	w.starting(b)
	b.Status.Phase, b.Status.Reason = backupv1.BackupServing, backupv1.ReasonServing
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
	w.settle(b)
	if c := readyCondition(b); c == nil || c.Status != metav1.ConditionTrue || len(w.exports) != 0 || w.secrets[b.Status.PullTunnelSecret] == nil {
		t.Fatalf("%+v, exports %v, secrets %v", c, w.exports, w.secrets)
	}
	b.Status.PullTunnels = []backupv1.VolumeTunnel{{Volume: "root", PullTunnel: backupv1.PullTunnel{Address: "10.0.0.1:9090"}}}
	delete(w.secrets, b.Status.PullTunnelSecret)
	if w.settle(b); w.secrets[b.Status.PullTunnelSecret] == nil || len(b.Status.PullTunnels) != 1 {
		t.Errorf("secrets %v, tunnels %v", w.secrets, b.Status.PullTunnels)
	}
}

func TestPulledByDataUploads_succeedsOnlyWhenAllIsStored(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]bool{"stored": true, "somebody deletes it": false} {
		w := newWorld()
		w.track()
		b := w.createPulledByDataUploads("b")
		w.starting(b)
		b.Status.Phase, b.Status.Reason = backupv1.BackupServing, backupv1.ReasonServing
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
		b.Status.PullTunnels = []backupv1.VolumeTunnel{{Volume: "root"}}
		w.settle(b)
		b.Finalizers = append(b.Finalizers, "test") // to look at it when it has ended
		if stored {
			b.Annotations = map[string]string{layout.AnnotationStored: "true"}
		}
		w.delete(b)
		w.settle(b)
		if aborts := meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionAborting); aborts == stored {
			t.Errorf("%s: Aborting is %v", name, aborts)
		}
		w.copied(b)
		w.settle(b)
		b.Status.Phase = backupv1.BackupPruned
		w.settle(b)
		w.mount()
		w.settle(b)
		want, moved := backupv1.BackupFailed, false
		if stored {
			want, moved = backupv1.BackupDone, true
		}
		latest := w.tracker.Status.LatestCheckpoint
		if b.Status.Phase != want || (latest != nil && latest.BackupUID == b.UID) != moved || b.Status.PullTunnels != nil || len(w.secrets) != 0 {
			t.Errorf("%s: %s %s, checkpoint %+v, tunnels %v, secrets %v", name, b.Status.Phase, b.Status.Message, latest, b.Status.PullTunnels, w.secrets)
		}
	}
}

// A handler or launcher of a version without pull mode pushes to the scratch claim and says Copied, and clients cannot read
// that. Deleting such a backup says nothing about data.
func TestPull_copiedWithoutHavingBeenReadable(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*world, *backupv1.VirtualMachineBackup){
		"deleted before it was served": (*world).starting,
		"deleted while Ready is False": (*world).serving,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.track()
			b := w.createPull("b")
			prepare(w, b)
			w.delete(b)
			w.settle(b)
			w.copied(b)
			w.settle(b)
			if w.tracker.Status.LatestCheckpoint != nil || b.Status.Result != backupv1.BackupUnsuccessful {
				t.Errorf("Ready is %v: the tracker moved to %+v, result %q", readyCondition(b), w.tracker.Status.LatestCheckpoint, b.Status.Result)
			}
		})
	}
}

// What Ready was at the deletion counts, also if the tracker cannot be moved at once.
func TestPull_copiedStaysReadableWhileItsTrackerIsRefused(t *testing.T) {
	t.Parallel()
	s := &backupv1.VirtualMachineBackupStatus{Phase: backupv1.BackupServing}
	for ready, want := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: true, metav1.ConditionFalse: false} {
		s.Conditions, s.Phase = nil, backupv1.BackupServing
		setCondition(s, metav1.Condition{Type: backupv1.ConditionReady, Status: ready, Reason: "ExportPending"}, 1, epoch)
		s.Phase = backupv1.BackupCopied
		for range 2 {
			setConditions(s, 1, true, want, epoch)
			if got := wasReadable(s); got != want {
				t.Errorf("Ready was %s: readable %v, want %v", ready, got, want)
			}
		}
		if meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionReady) {
			t.Errorf("clients are told that the backup can be read: %+v", s.Conditions)
		}
	}
}

// The API server stamps a deletion by its own clock.
func TestPull_deletionByAnotherClock(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.createPull("b")
	w.ready(b)
	w.delete(b)
	w.now = w.now.Add(w.limits.Aborting + time.Second) // the controller's clock, at the same moment
	w.settle(b)
	if b.Status.Phase != backupv1.BackupServing {
		t.Errorf("deleted a moment ago: %s, %s: %s", b.Status.Phase, b.Status.Reason, b.Status.Message)
	}
	w.now = w.now.Add(w.limits.Aborting)
	w.settle(b)
	if b.Status.Phase == backupv1.BackupServing || b.Status.Result != backupv1.BackupUnsuccessful {
		t.Errorf("the node has been silent for %s: %s, %s: %s", w.limits.Aborting, b.Status.Phase, b.Status.Reason, b.Status.Message)
	}
}
