package virtualmachineexport

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/gen"
)

var now = time.Date(2026, 3, 3, 16, 13, 28, 0, time.UTC)

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	c := gen.Claim(gen.Meta("ns", name))
	c.Status.Phase = corev1.ClaimBound
	return c
}

// claimInput is an export of the bound claim "disk" that is served.
func claimInput() *input {
	export := gen.Export(gen.Meta("ns", "web"), gen.ClaimSource("disk"))
	export.UID, export.CreationTimestamp = "u1", metav1.NewTime(now.Add(-time.Minute))
	return served(&input{
		Now: now, Export: export, ConfigurationName: "varve/kubevirt", Authorities: "authorities",
		Source: &volumeSource{claims: []claim{{name: "disk", object: boundClaim("disk")}}},
	})
}

// backupInput is an export of the backup "b" that is served.
func backupInput() *input {
	backup := gen.Backup(gen.Meta("ns", "b"))
	backup.UID = "b1"
	export := gen.Export(gen.Meta("ns", "b"), gen.BackupSource("b"))
	export.UID, export.CreationTimestamp = "u1", metav1.NewTime(now.Add(-time.Minute))
	return served(&input{
		Now: now, Export: export, ConfigurationName: "varve/kubevirt", Authorities: "authorities",
		Source: &backupSource{
			name: "b", backup: backup, pull: true, tunnelSecretExists: true,
			offer: &Offer{Volumes: []string{"root", "data"}, TunnelSecret: "backup-tunnel-b", Node: "node-1"},
		},
	})
}

// served adds what the controller makes, and a pod that is ready.
func served(in *input) *input {
	in.Service = exportService(in.Export, in.Source)
	in.Token = tokenSecret(in.Export)
	in.Certificate = certificateSecret(in.Export, authority.Certificate{Certificate: []byte("c"), Key: []byte("k")})
	in.RenewCertificate = now.Add(16 * time.Hour)
	in.Pod = exportPod(in.Export, in.Source, "t", Image{Name: "varve"})
	in.Pod.UID = "p1"
	setReady(in.Pod)
	in.Pods = podHistory{created: 1, last: now.Add(-30 * time.Second)}
	return in
}

func setReady(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func volumes(in *input) *volumeSource { return in.Source.(*volumeSource) }

func offered(in *input) *backupSource { return in.Source.(*backupSource) }

// machineInput is claimInput with the machine "vm" as its source.
func machineInput() *input {
	in := claimInput()
	in.Export.Spec.Source = *gen.Source("vm")
	s := volumes(in)
	s.vmName, s.vm = "vm", gen.VirtualMachine(gen.Meta("ns", "vm"), gen.Guest(gen.Disk("root", "disk")))
	in.Manifests = manifestsSecret(in)
	return served(in)
}

func notOurs(o metav1.Object) { o.SetOwnerReferences(nil) }

// An export that waits for what nobody tells of looks again after 2 seconds at first, and once a minute after 8 minutes. One that was
// served until now begins anew.
func TestDecide_looksAreRarerWithTime(t *testing.T) {
	t.Parallel()
	for waited, want := range map[time.Duration]time.Duration{0: retryUnwatched, time.Minute: 7500 * time.Millisecond, 8 * time.Minute: time.Minute, 100 * time.Hour: time.Minute} {
		in := claimInput()
		in.Pod = nil
		in.Export.Spec.TokenSecretRef, in.Token = ptr.To("mine"), nil
		in.Export.Status.Conditions = []exportv1.Condition{{Type: exportv1.ConditionReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(in.Now.Add(-waited))}}
		in.Export.Spec.TTLDuration = &metav1.Duration{Duration: 1000 * time.Hour}
		if d := decide(in); d.RequeueAfter != want {
			t.Errorf("after %s: again in %s, want %s", waited, d.RequeueAfter, want)
		}
		in.Export.Status.Conditions[0].Status = corev1.ConditionTrue
		if d := decide(in); d.RequeueAfter != retryUnwatched {
			t.Errorf("served until now: again in %s", d.RequeueAfter)
		}
	}
}

// TestDecide is about one thing each that is not as in an export that is served.
func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		service = 1 << iota
		token
		certificate
		pod
		deletes
		force
		manifests
	)
	named := func(in *input, secret *corev1.Secret) {
		in.Export.Spec.TokenSecretRef, in.Token = ptr.To("mine"), secret
	}
	userSecret := func(data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: gen.Meta("ns", "mine"), Data: data}
	}
	// White space around a token does not count.
	shortToken, longToken := map[string][]byte{"token": []byte(" fifteen letters\n")}, map[string][]byte{"token": []byte("sixteen letters.")}
	for name, c := range map[string]struct {
		in      func() *input
		edit    func(*input)
		phase   exportv1.VirtualMachineExportPhase
		reason  string
		words   string
		actions int
		within  time.Duration // the next look is this far away at most
	}{
		"served":           {claimInput, func(*input) {}, "Ready", "PodReady", "", 0, lookEvery},
		"a served backup":  {backupInput, func(*input) {}, "Ready", "PodReady", "", 0, lookEvery},
		"a served machine": {machineInput, func(*input) {}, "Ready", "PodReady", "", 0, lookEvery},
		"new": {claimInput, func(in *input) {
			in.Service, in.Token, in.Certificate, in.Pod, in.Pods = nil, nil, nil, nil, podHistory{}
		}, "Pending", "PodPending", "Pod virt-export-web is being created", service | token | certificate | pod, lookEvery},
		"expires soon":          {claimInput, func(in *input) { in.Export.Spec.TTLDuration = &metav1.Duration{Duration: 61 * time.Second} }, "Ready", "PodReady", "", 0, time.Second},
		"gate off, nothing yet": {claimInput, func(in *input) { in.GateOff, in.Pod = true, nil }, "Pending", "FeatureGateDisabled", "VMExport is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt varve/kubevirt", 0, time.Hour * 2},
		"gate turned off":       {claimInput, func(in *input) { in.GateOff = true }, "Ready", "PodReady", "", 0, lookEvery},

		"claim missing":         {claimInput, func(in *input) { volumes(in).claims[0].object, in.Pod = nil, nil }, "Pending", "PVCNotFound", "PersistentVolumeClaim disk does not exist", 0, 2 * time.Hour},
		"claim being deleted":   {claimInput, func(in *input) { volumes(in).claims[0].object.DeletionTimestamp = &metav1.Time{Time: now} }, "Pending", "PVCNotFound", "is being deleted", deletes, 2 * time.Hour},
		"claim not bound":       {claimInput, func(in *input) { volumes(in).claims[0].object.Status.Phase, in.Pod = corev1.ClaimPending, nil }, "Pending", "PVCNotBound", "PersistentVolumeClaim disk is not bound", 0, 2 * time.Hour},
		"claim lost":            {claimInput, func(in *input) { volumes(in).claims[0].object.Status.Phase = corev1.ClaimLost }, "Pending", "PVCNotBound", "", deletes, 2 * time.Hour},
		"claim in use":          {claimInput, func(in *input) { volumes(in).claims[0].writers, in.Pod = []string{"shell"}, nil }, "Pending", "PVCInUse", "Pod shell can write to PersistentVolumeClaim disk", 0, retryInUse},
		"claim taken":           {claimInput, func(in *input) { volumes(in).claims[0].writers = []string{"a", "b"} }, "Pending", "PVCInUse", "Pod a and 1 more can write", deletes, retryInUse},
		"machine missing":       {machineInput, func(in *input) { volumes(in).vm, volumes(in).claims, in.Pod = nil, nil, nil }, "Pending", "SourceNotFound", "VirtualMachine vm does not exist", 0, 2 * time.Hour},
		"machine without disks": {machineInput, func(in *input) { volumes(in).claims, in.Pod = nil, nil }, "Skipped", "NoVolumes", "VirtualMachine vm has no disks", 0, 2 * time.Hour},
		"machine about to run":  {machineInput, func(in *input) { volumes(in).instance = gen.VirtualMachineInstance(gen.Meta("ns", "vm"), gen.Guest()) }, "Pending", "PVCInUse", "VirtualMachine vm runs, or is about to (pod virt-launcher-vm-", deletes, 2 * time.Hour},
		"manifests lost":        {machineInput, func(in *input) { in.Manifests = nil }, "Ready", "PodReady", "", manifests, lookEvery},
		"manifests damaged":     {machineInput, func(in *input) { in.Manifests.Data["internal.json"] = nil }, "Ready", "PodReady", "", manifests, lookEvery},
		"machine changed":       {machineInput, func(in *input) { volumes(in).vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyManual) }, "Ready", "PodReady", "", manifests, lookEvery},
		"proxy has an address":  {machineInput, func(in *input) { in.Proxy.Host = "exports.example.org" }, "Ready", "PodReady", "", manifests, lookEvery},
		"somebody's manifests":  {machineInput, func(in *input) { notOurs(in.Manifests); in.Pod = nil }, "Pending", "NameTaken", "Secret virt-export-web-manifests", 0, retryUnwatched},
		"machine that has ended": {machineInput, func(in *input) {
			volumes(in).instance = gen.VirtualMachineInstance(gen.Meta("ns", "vm"), gen.Guest())
			volumes(in).instance.Status.Phase = kubevirtv1.PhaseSucceeded
		}, "Ready", "PodReady", "", 0, lookEvery},
		"backup missing":         {backupInput, func(in *input) { offered(in).backup, offered(in).offer, in.Pod = nil, nil, nil }, "Pending", "SourceNotFound", "VirtualMachineBackup b does not exist", 0, 2 * time.Hour},
		"backup is push":         {backupInput, func(in *input) { offered(in).pull, offered(in).offer, in.Pod = false, nil, nil }, "Skipped", "NotAPullBackup", "VirtualMachineBackup b is not in pull mode", 0, 2 * time.Hour},
		"backup offers nothing":  {backupInput, func(in *input) { offered(in).offer, in.Pod = nil, nil }, "Pending", "BackupNotReady", "VirtualMachineBackup b has nothing to pull yet", 0, 2 * time.Hour},
		"backup has ended":       {backupInput, func(in *input) { offered(in).backup.Status.Phase = backupv1.BackupFailed }, "Terminated", "BackupEnded", "VirtualMachineBackup b has ended: Failed", deletes, 2 * time.Hour},
		"no tunnel secret yet":   {backupInput, func(in *input) { offered(in).tunnelSecretExists, in.Pod = false, nil }, "Pending", "BackupNotReady", "Secret backup-tunnel-b with the tunnel's token", 0, retryUnwatched},
		"backup made again":      {backupInput, func(in *input) { offered(in).backup.UID = "b2" }, "Pending", "PodPending", "is being replaced", deletes, lookEvery},
		"another disk in backup": {backupInput, func(in *input) { offered(in).offer.Volumes = []string{"root"} }, "Pending", "PodPending", "is being replaced", deletes, lookEvery},

		"token named":           {claimInput, func(in *input) { named(in, userSecret(longToken)); in.Pod = nil }, "Pending", "PodLost", "", pod, lookEvery},
		"token named, short":    {claimInput, func(in *input) { named(in, userSecret(shortToken)); in.Pod = nil }, "Pending", "TokenSecretInvalid", "fewer than 16 characters: make a longer one", 0, retryUnwatched},
		"token short, served":   {claimInput, func(in *input) { named(in, userSecret(shortToken)) }, "Ready", "PodReady", "", 0, lookEvery},
		"token named, missing":  {claimInput, func(in *input) { named(in, nil); in.Pod = nil }, "Pending", "TokenSecretNotFound", "Secret mine, which spec.tokenSecretRef names, does not exist", 0, retryUnwatched},
		"token taken back":      {claimInput, func(in *input) { named(in, nil) }, "Pending", "TokenSecretNotFound", "", deletes, retryUnwatched},
		"token named, empty":    {claimInput, func(in *input) { named(in, userSecret(map[string][]byte{"token": []byte(" \n")})) }, "Pending", "TokenSecretInvalid", "Secret mine", deletes, retryUnwatched},
		"token named, no key":   {claimInput, func(in *input) { named(in, userSecret(map[string][]byte{"other": []byte("x")})) }, "Pending", "TokenSecretInvalid", "has no key token", deletes, retryUnwatched},
		"own token lost":        {claimInput, func(in *input) { in.Token = nil }, "Ready", "PodReady", "", token, lookEvery},
		"own token emptied":     {claimInput, func(in *input) { in.Token.Data = nil }, "Ready", "PodReady", "", token, lookEvery},
		"service misled":        {claimInput, func(in *input) { in.Service.Spec.Selector = map[string]string{"mine": "yes"} }, "Ready", "PodReady", "", service, lookEvery},
		"service for the ready": {backupInput, func(in *input) { in.Service.Spec.PublishNotReadyAddresses = false }, "Ready", "PodReady", "", service, lookEvery},
		"certificate due":       {claimInput, func(in *input) { in.RenewCertificate = now }, "Ready", "PodReady", "", certificate, lookEvery},
		"certificate due soon":  {claimInput, func(in *input) { in.RenewCertificate = now.Add(time.Second) }, "Ready", "PodReady", "", 0, time.Second},
		"certificate unusable":  {claimInput, func(in *input) { in.RenewCertificate = time.Time{} }, "Ready", "PodReady", "", certificate, lookEvery},

		"somebody's pod":          {claimInput, func(in *input) { notOurs(in.Pod) }, "Pending", "NameTaken", "Pod virt-export-web exists and does not belong to this export", 0, retryUnwatched},
		"somebody's service":      {claimInput, func(in *input) { notOurs(in.Service); in.Pod = nil }, "Pending", "NameTaken", "Service virt-export-web", 0, retryUnwatched},
		"somebody's token":        {claimInput, func(in *input) { notOurs(in.Token); in.Pod = nil }, "Pending", "NameTaken", "Secret export-token-web", 0, retryUnwatched},
		"somebody's certificate":  {claimInput, func(in *input) { notOurs(in.Certificate); in.Pod = nil }, "Pending", "NameTaken", "Secret virt-export-web-cert", 0, retryUnwatched},
		"a predecessor's pod":     {claimInput, func(in *input) { in.Pod.OwnerReferences[0].UID = "u0" }, "Pending", "NameTaken", "Pod virt-export-web", 0, retryUnwatched},
		"a pod without the label": {claimInput, func(in *input) { in.Pod.Labels = nil }, "Pending", "NameTaken", "Pod virt-export-web", 0, retryUnwatched},

		"pod gone":           {claimInput, func(in *input) { in.Pod = nil }, "Pending", "PodLost", "Pod virt-export-web is gone; another one is being created", pod, lookEvery},
		"pod gone too often": {claimInput, func(in *input) { in.Pod, in.Pods = nil, podHistory{created: 5, last: now.Add(-10 * time.Second)} }, "Pending", "PodLost", "5 pods of this export have ended", 0, 6 * time.Second},
		"pod ended": {claimInput, func(in *input) {
			in.Pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "the node had no memory."}
		}, "Pending", "PodLost", "Pod virt-export-web ended: Failed, Evicted, the node had no memory; another", deletes, lookEvery},
		"pod being deleted": {claimInput, func(in *input) { in.Pod.DeletionTimestamp = &metav1.Time{Time: now} }, "Pending", "PodLost", "was deleted; another one is created when it has ended", 0, stuckAfter},
		"pod stuck":         {claimInput, func(in *input) { in.Pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-stuckAfter)} }, "Pending", "PodLost", "", deletes | force, lookEvery},
		"pod stuck on a claim in use": {claimInput, func(in *input) {
			in.Pod.DeletionTimestamp, volumes(in).claims[0].writers = &metav1.Time{Time: now.Add(-stuckAfter)}, []string{"vm"}
		}, "Pending", "PVCInUse", "", deletes | force, retryInUse},
		"pod not ready": {claimInput, func(in *input) { in.Pod.Status.Conditions[1].Status = corev1.ConditionFalse }, "Pending", "PodNotReady", "runs and cannot serve yet", 0, lookEvery},
		"pod pending":   {claimInput, func(in *input) { in.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }, "Pending", "PodPending", "is starting", 0, lookEvery},
		"pod has no node": {claimInput, func(in *input) {
			in.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available."}}}
		}, "Pending", "PodPending", "cannot be scheduled: 0/3 nodes are available.", 0, lookEvery},
		"server crashes": {claimInput, func(in *input) {
			in.Pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s."}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "open disk.img: permission denied\n"}},
			}}}
		}, "Pending", "PodNotReady", "CrashLoopBackOff: back-off 10s. It ended with exit code 1: open disk.img: permission denied.", 0, lookEvery},
		"refused":                       {claimInput, func(in *input) { in.Pod, in.Refusal = nil, "exceeded quota" }, "Pending", "RequestRefused", "exceeded quota", pod, lookEvery},
		"refused before, and there now": {claimInput, func(in *input) { in.Refusal = "exceeded quota" }, "Ready", "PodReady", "", 0, lookEvery},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in()
			c.edit(in)
			d := decide(in)
			if d.Expire || d.Status == nil {
				t.Fatalf("%+v", d)
			}
			ready := d.Status.Conditions[0]
			if d.Status.Phase != c.phase || ready.Reason != c.reason || !strings.Contains(ready.Message, c.words) || (ready.Status == "True") != (c.phase == "Ready") {
				t.Errorf("%s %+v", d.Status.Phase, ready)
			}
			actions := 0
			for bit, does := range map[int]bool{service: d.WriteService, token: d.WriteToken, certificate: d.WriteCertificate, pod: d.CreatePod, deletes: d.DeletePod, force: d.Force, manifests: d.WriteManifests} {
				if does {
					actions |= bit
				}
			}
			if actions != c.actions {
				t.Errorf("actions %b, want %b", actions, c.actions)
			}
			if d.RequeueAfter <= 0 || d.RequeueAfter > c.within {
				t.Errorf("looks again after %s, want %s at most", d.RequeueAfter, c.within)
			}
			if served := d.Status.Links != nil && len(d.Status.Links.Internal.Volumes)+len(d.Status.Links.Internal.Backups) > 0; served != (c.phase == "Ready") {
				t.Errorf("links %+v", d.Status.Links)
			}
			if d.DeletePod && d.DeleteMessage == "" {
				t.Error("no word of the deletion")
			}
		})
	}
}

func TestDecide_endsAtItsTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl  time.Duration
		at   time.Duration // since the creation
		want bool
	}{
		"default, before": {0, 2*time.Hour - time.Second, false},
		"default":         {0, 2 * time.Hour, true},
		"own, before":     {time.Minute, 59 * time.Second, false},
		"own":             {time.Minute, time.Minute, true},
		"extended":        {5 * time.Hour, 4 * time.Hour, false},
	} {
		in := claimInput()
		if c.ttl > 0 {
			in.Export.Spec.TTLDuration = &metav1.Duration{Duration: c.ttl}
		}
		in.Now = in.Export.CreationTimestamp.Add(c.at)
		if got := decide(in); got.Expire != c.want {
			t.Errorf("%s: %+v", name, got)
		}
		// One that waits ends as well.
		volumes(in).claims[0].object = nil
		if got := decide(in); got.Expire != c.want {
			t.Errorf("%s, without its claim: %+v", name, got)
		}
	}
	in := claimInput()
	in.Export.DeletionTimestamp = &metav1.Time{Time: now}
	in.Pod = nil
	if d := decide(in); d.Status != nil || d.createsSomething() {
		t.Errorf("a deleted export: %+v", d)
	}
}

// Status is written before the certificate, so what clients trust is there first: also while nothing is served, because
// the launcher of a backup needs it then.
func TestStatus_hasTheAuthoritiesOfACertificateBeforeItIsIssued(t *testing.T) {
	t.Parallel()
	in := backupInput()
	in.Certificate, in.Pod = nil, nil
	d := decide(in)
	if !d.WriteCertificate || d.Status.Links == nil || d.Status.Links.Internal.Cert != "authorities" || d.Status.ServiceName != "virt-export-b" {
		t.Errorf("%+v", d)
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	in := claimInput()
	in.Proxy = exportproxy.Address{Host: "exports.example.org", Authorities: "proxy's"}
	const outside = "https://exports.example.org/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/"
	formats := func(base string) []exportv1.VirtualMachineExportVolume {
		return []exportv1.VirtualMachineExportVolume{{Name: "disk", Formats: []exportv1.VirtualMachineExportVolumeFormat{
			{Format: "raw", URL: base + "/volumes/disk/disk.img"}, {Format: "gzip", URL: base + "/volumes/disk/disk.img.gz"},
		}}}
	}
	endpoints := func(base, volume string) exportv1.VirtualMachineExportBackup {
		return exportv1.VirtualMachineExportBackup{
			Name: volume,
			Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
				{Endpoint: "map", URL: base + "/exports/" + volume + "/map"},
				{Endpoint: "data", URL: base + "/exports/" + volume + "/data"},
			},
		}
	}
	link := func(cert, base string) *exportv1.VirtualMachineExportLink {
		return &exportv1.VirtualMachineExportLink{
			Cert: cert, Volumes: formats(base),
			Backups: []exportv1.VirtualMachineExportBackup{endpoints(base, "disk")},
		}
	}
	want := &exportv1.VirtualMachineExportLinks{
		Internal: link("authorities", "https://virt-export-web.ns.svc"), External: link("proxy's", outside+"web"),
	}
	if diff := cmp.Diff(want, decide(in).Status.Links); diff != "" {
		t.Error(diff)
	}
	in = backupInput()
	want = &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{
		Cert:    "authorities",
		Backups: []exportv1.VirtualMachineExportBackup{endpoints("https://virt-export-b.ns.svc", "root"), endpoints("https://virt-export-b.ns.svc", "data")},
	}}
	if diff := cmp.Diff(want, decide(in).Status.Links); diff != "" {
		t.Error(diff)
	}
	// What the links name is what the pod serves.
	config, err := podspec.Decode(configOf(in.Export, in.Source))
	if err != nil || !cmp.Equal(config.Backup, &podspec.Backup{Name: "b", UID: "b1", Volumes: []string{"root", "data"}}) {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	in := claimInput()
	first := decide(in).Status
	if c := first.Conditions; len(c) != 2 || c[1].Type != "PVCReady" || c[1].Status != "True" || c[1].Reason != "PVCBound" || !c[0].LastTransitionTime.Time.Equal(now) {
		t.Errorf("%+v", c)
	}
	// Nothing changes later, so nothing is written.
	in.Export.Status, in.Now = *first, now.Add(time.Minute)
	if diff := cmp.Diff(first, decide(in).Status); diff != "" {
		t.Error(diff)
	}
	volumes(in).claims[0].writers = []string{"shell"}
	c := decide(in).Status.Conditions
	if c[1].Reason != "PVCInUse" || c[1].Status != "False" || !c[1].LastTransitionTime.Time.Equal(in.Now) {
		t.Errorf("%+v", c)
	}
	if c := decide(backupInput()).Status.Conditions; len(c) != 1 {
		t.Errorf("a backup has no claims: %+v", c)
	}
	if vm := decide(machineInput()).Status.VirtualMachineName; vm == nil || *vm != "vm" {
		t.Errorf("machine %v", vm)
	}
}

func TestPodHistory_delaysGrow(t *testing.T) {
	t.Parallel()
	if !(podHistory{}).notBefore().IsZero() {
		t.Error("the first pod waits")
	}
	previous := time.Duration(0)
	for created := 1; created < 100; created++ {
		delay := podHistory{created: created, last: now}.notBefore().Sub(now)
		if delay < previous || delay > maxPodDelay {
			t.Fatalf("%d: %s after %s", created, delay, previous)
		}
		previous = delay
	}
	if previous != maxPodDelay {
		t.Errorf("the longest delay is %s", previous)
	}
	if first := (podHistory{created: 1, last: now}).notBefore().Sub(now); first > 2*time.Second {
		t.Errorf("a pod that has served is replaced after %s", first)
	}
}

func TestWriters(t *testing.T) {
	t.Parallel()
	mounting := func(name string, phase corev1.PodPhase, readOnly bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: gen.Meta("ns", name), Status: corev1.PodStatus{Phase: phase}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v"}, {Name: "w"}}
		p.Spec.Volumes[1].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk", ReadOnly: readOnly}
		return p
	}
	in := claimInput()
	got := writersOf("disk", []corev1.Pod{
		mounting("running", corev1.PodRunning, false), mounting("pending", corev1.PodPending, false), mounting("unknown", corev1.PodUnknown, false),
		mounting("reader", corev1.PodRunning, true), mounting("done", corev1.PodSucceeded, false), mounting("failed", corev1.PodFailed, false), *in.Pod,
	})
	if diff := cmp.Diff([]string{"pending", "running", "unknown"}, got); diff != "" {
		t.Error(diff)
	}
	if got := writersOf("other", []corev1.Pod{mounting("running", corev1.PodRunning, false)}); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

func TestIsPull_inBothSpellings(t *testing.T) {
	t.Parallel()
	for mode, want := range map[backupv1.BackupMode]bool{"pull": true, "Pull": true, "push": false, "Push": false, "": false} {
		if got := gen.Backup(gen.Meta("ns", "b"), gen.SetBackupMode(mode)).Spec.IsPull(); got != want {
			t.Errorf("mode %q: %t", mode, got)
		}
	}
}

func TestOffer_ofABackupThatServes(t *testing.T) {
	t.Parallel()
	b := gen.Backup(gen.Meta("ns", "b"))
	b.Status.NodeName = "node-1"
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {Name: "data"}}
	for _, phase := range []backupv1.BackupPhase{"", backupv1.BackupPending, backupv1.BackupAttaching, backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupPruning} {
		if b.Status.Phase = phase; offerFromStatus(b) != nil {
			t.Errorf("a backup that is %q has an offer", phase)
		}
	}
	b.Status.Phase = backupv1.BackupServing
	if offerFromStatus(b) != nil {
		t.Error("a backup without a tunnel has an offer")
	}
	b.Status.PullTunnelSecret = "backup-tunnel-b"
	want := &Offer{Volumes: []string{"root", "data"}, TunnelSecret: "backup-tunnel-b", Node: "node-1"}
	if diff := cmp.Diff(want, offerFromStatus(b)); diff != "" {
		t.Error(diff)
	}
}
