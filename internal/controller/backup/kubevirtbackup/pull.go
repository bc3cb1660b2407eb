package kubevirtbackup

import (
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// pullInput is what the decisions about a backup in pull mode depend on, beside what those in push mode do. Objects that
// do not exist are nil.
type pullInput struct {
	// Token is the Secret that spec.tokenSecretRef names.
	Token *corev1.Secret
	// Key is the key of the installation.
	Key []byte
	// TunnelSecret has the name of the Secret for the backup's tunnel.
	TunnelSecret *corev1.Secret
	// Export has the name of the backup's export, and Service that of the export's Service.
	Export  *exportv1.VirtualMachineExport
	Service *corev1.Service
}

func (in *input) isPull() bool { return in.Backup.Spec.IsPull() }

// expirationTime returns when the time of a backup in pull mode is up.
func (in *input) expirationTime() time.Time {
	return in.Backup.CreationTimestamp.Add(in.Backup.Spec.Lifetime())
}

// hasExpired reports whether the time of a backup in pull mode is up. Whoever deletes it has decided how it ends.
func (in *input) hasExpired() bool {
	return in.isPull() && !in.isBeingDeleted() && deadlinePassed(in, in.expirationTime())
}

// ttlExpired says that the time is up, and what the backup waited for if its point in time was not fixed.
func ttlExpired(in *input) backupstate.State {
	if in.Backup.Status.Phase != backupv1.BackupServing {
		return backupstate.TTLExpiredWaiting(in.Backup.Name, in.Backup.Spec.Lifetime(), in.Backup.Status.Message)
	}
	return backupstate.TTLExpired(in.Backup.Name, in.Backup.Spec.Lifetime())
}

// wakeAtExpiration has a backup looked at when its time is up.
func wakeAtExpiration(in *input, d decision) decision {
	if in.isPull() && !in.isBeingDeleted() && (isWaiting(in.Backup) || backupstate.FindPhase(in.Backup.Status.Phase).NeedsGuest) && in.Now.Before(in.expirationTime()) {
		d.Wake = earlierTime(d.Wake, in.expirationTime())
	}
	return d
}

func (in *input) tunnelSecretName() string { return layout.TunnelSecret(in.volumeName()) }

// ownTunnelSecret returns the Secret of the backup's tunnel, or nil.
func (in *input) ownTunnelSecret() *corev1.Secret {
	if s := in.Pull.TunnelSecret; s != nil && in.isOwn(s) {
		return s
	}
	return nil
}

// ownExport returns the backup's export, or nil.
func (in *input) ownExport() *exportv1.VirtualMachineExport {
	if e := in.Pull.Export; e != nil && in.isOwn(e) {
		return e
	}
	return nil
}

// isOwn reports whether the backup made an object. It has lost its owner if the backup was deleted with --cascade=orphan.
func (in *input) isOwn(o metav1.Object) bool {
	return metav1.IsControlledBy(o, in.Backup) || metav1.GetControllerOf(o) == nil && o.GetLabels()[layout.LabelBackup] == string(in.Backup.UID)
}

// missingTime ends a backup in pull mode that has waited for its whole time.
func missingTime(in *input) *obstacle {
	if in.hasExpired() {
		return failWith(ttlExpired(in))
	}
	return nil
}

// missingToken waits for the Secret with the clients' token, so that no point in time is fixed that nobody can read.
func missingToken(in *input) *obstacle {
	name := ptr.Deref(in.Backup.Spec.TokenSecretRef, "")
	switch {
	case !in.isPull(), in.Backup.Spec.IsPulledByDataUploads():
		return nil
	case in.Pull.Token == nil:
		return pollFor(backupstate.TokenSecretNotFound(name, podspec.TokenKey))
	}
	switch length := podspec.TokenLength(in.Pull.Token); {
	case length == 0:
		return pollFor(backupstate.TokenSecretEmpty(name, podspec.TokenKey))
	case length < podspec.MinTokenCharacters:
		return pollFor(backupstate.TokenTooShort(name, podspec.TokenKey, podspec.MinTokenCharacters))
	}
	return nil
}

// missingTunnel waits for what the tunnel's Secret needs.
func missingTunnel(in *input) *obstacle {
	switch {
	case !in.isPull():
		return nil
	case in.Pull.TunnelSecret != nil && in.ownTunnelSecret() == nil:
		return pollFor(backupstate.SecretForeign(in.tunnelSecretName()))
	case in.Pull.TunnelSecret == nil && len(in.Pull.Key) == 0:
		return pollFor(backupstate.TunnelKeyMissing())
	}
	return nil
}

// newTunnelSecret returns the Secret by which the launcher and whoever reads the backup know each other.
func newTunnelSecret(in *input) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: childMeta(in, in.tunnelSecretName()),
		Immutable:  ptr.To(true),
		Data:       map[string][]byte{podspec.TokenKey: tunnel.Token(in.Pull.Key, string(in.Backup.UID))},
	}
}

// newExport returns the export that serves the backup.
func newExport(in *input) *exportv1.VirtualMachineExport {
	return &exportv1.VirtualMachineExport{
		ObjectMeta: childMeta(in, layout.BackupExport(in.Backup.Name)),
		Spec: exportv1.VirtualMachineExportSpec{
			Source: corev1.TypedLocalObjectReference{
				APIGroup: ptr.To(backupv1.GroupVersion.Group), Kind: exportv1.SourceBackup, Name: in.Backup.Name,
			},
			TokenSecretRef: in.Backup.Spec.TokenSecretRef,
			TTLDuration:    &metav1.Duration{Duration: remainingTime(in, in.Now)},
		},
	}
}

// remainingTime returns how long an export lasts that was created at a given time, in whole seconds.
func remainingTime(in *input, created time.Time) time.Duration {
	return max(in.expirationTime().Sub(created).Round(time.Second), time.Second)
}

func childMeta(in *input, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: in.Backup.Namespace, Name: name, Labels: map[string]string{layout.LabelBackup: string(in.Backup.UID)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(in.Backup, backupv1.GroupVersion.WithKind("VirtualMachineBackup"))},
	}
}

// decideMovers looks after a backup that mover pods read. The controller of DataUploads tells the launcher where they are, and deletes
// the backup; the handler ends the phase then.
func decideMovers(in *input) decision {
	d := toStatus(in, change{
		phase: backupv1.BackupServing, state: in.currentState(), deadline: in.expirationTime(),
		more: func(s *backupv1.VirtualMachineBackupStatus) {
			setReady(in, s, metav1.ConditionTrue, backupstate.MoversMayRead())
		},
	})
	if d.Step == stepNone && in.Pull.TunnelSecret == nil && len(in.Pull.Key) > 0 { // somebody deleted it
		return decision{Step: stepCreateTunnelSecret, Secret: newTunnelSecret(in)}
	}
	return d
}

// decideServing looks after a backup that clients read: it has an export, and status says where it serves. The handler ends
// the phase when the backup is deleted.
func decideServing(in *input) decision {
	if in.Backup.Spec.IsPulledByDataUploads() {
		return decideMovers(in)
	}
	// Status comes first: what cannot be made again must not be said to be there.
	d := toStatus(in, change{
		phase: backupv1.BackupServing, state: in.currentState(), deadline: in.expirationTime(),
		more: func(s *backupv1.VirtualMachineBackupStatus) { describeExport(in, s) },
	})
	export := in.ownExport()
	switch {
	case d.Step != stepNone:
		return d
	case in.Pull.TunnelSecret == nil && len(in.Pull.Key) > 0: // somebody deleted it
		return decision{Step: stepCreateTunnelSecret, Secret: newTunnelSecret(in)}
	case in.Pull.Export == nil:
		return decision{Step: stepCreateExport, Export: newExport(in)}
	case export != nil && export.DeletionTimestamp == nil && exportTimeDiffers(in, export):
		return decision{Step: stepExtendExport, Export: newExport(in)}
	}
	if c := meta.FindStatusCondition(in.Backup.Status.Conditions, backupv1.ConditionReady); c == nil || c.Status != metav1.ConditionTrue {
		var waited time.Duration
		if c != nil {
			waited = in.Now.Sub(c.LastTransitionTime.Time)
		}
		d.Wake = earlierTime(d.Wake, in.Now.Add(reconcile.PollInterval(waited)))
	}
	return d
}

// exportTimeDiffers reports whether the export lasts for another time than the backup.
func exportTimeDiffers(in *input, export *exportv1.VirtualMachineExport) bool {
	ttl := exportv1.DefaultTTL
	if export.Spec.TTLDuration != nil {
		ttl = export.Spec.TTLDuration.Duration
	}
	// The API has whole seconds.
	return (ttl - remainingTime(in, export.CreationTimestamp.Time)).Abs() > 2*time.Second
}

// describeExport writes where the backup is served, and whether it is.
func describeExport(in *input, s *backupv1.VirtualMachineBackupStatus) {
	export := in.ownExport()
	name := layout.BackupExport(in.Backup.Name)
	s.ExportName = name
	switch {
	case in.Pull.Export == nil:
		setReady(in, s, metav1.ConditionFalse, backupstate.ExportPending(name, "it is being created."))
		return
	case export == nil:
		setReady(in, s, metav1.ConditionFalse, backupstate.ExportForeign(name))
		return
	case in.Pull.TunnelSecret == nil:
		setReady(in, s, metav1.ConditionFalse, backupstate.ExportPending(name, "Secret "+in.tunnelSecretName()+" was deleted, and is created again."))
		return
	case export.DeletionTimestamp != nil:
		setReady(in, s, metav1.ConditionFalse, backupstate.ExportPending(name, "it is being deleted, and is created again."))
		return
	}
	if links := export.Status.Links; links != nil && links.Internal != nil {
		describeTunnel(in, s, links.Internal.Cert)
	}
	link := readyLink(export)
	if link == nil || !describeEndpoints(s, link) {
		why := ""
		for _, c := range export.Status.Conditions {
			if c.Type == exportv1.ConditionReady {
				why = c.Message
			}
		}
		setReady(in, s, metav1.ConditionFalse, backupstate.ExportPending(name, why))
		return
	}
	s.Cert, s.EndpointCert = link.Cert, link.Cert
	setReady(in, s, metav1.ConditionTrue, backupstate.EndpointsReady())
}

// readyLink returns where clients reach an export that is served, or nil. What can be reached from outside goes first. A
// link without certificates would be trusted by nobody.
func readyLink(export *exportv1.VirtualMachineExport) *exportv1.VirtualMachineExportLink {
	if export.Status.Phase != exportv1.ExportReady || export.Status.Links == nil {
		return nil
	}
	for _, link := range []*exportv1.VirtualMachineExportLink{export.Status.Links.External, export.Status.Links.Internal} {
		if link != nil && link.Cert != "" && len(link.Backups) > 0 {
			return link
		}
	}
	return nil
}

// describeEndpoints writes the endpoints of each volume. It returns false if a volume has none.
func describeEndpoints(s *backupv1.VirtualMachineBackupStatus, link *exportv1.VirtualMachineExportLink) bool {
	if len(s.IncludedVolumes) == 0 {
		return false
	}
	for i := range s.IncludedVolumes {
		v := &s.IncludedVolumes[i]
		v.MapEndpoint, v.DataEndpoint = "", ""
		for _, served := range link.Backups {
			if served.Name != v.Name {
				continue
			}
			for _, e := range served.Endpoints {
				switch e.Endpoint {
				case exportv1.EndpointMap:
					v.MapEndpoint = e.URL
				case exportv1.EndpointData:
					v.DataEndpoint = e.URL
				}
			}
		}
		if v.MapEndpoint == "" || v.DataEndpoint == "" {
			return false
		}
	}
	return true
}

// describeTunnel writes where the launcher connects to. It uses the Service's address: a launcher pod may have no names of
// the cluster.
func describeTunnel(in *input, s *backupv1.VirtualMachineBackupStatus, authorities string) {
	service := in.Pull.Service
	if service == nil || !metav1.IsControlledBy(service, in.Pull.Export) || net.ParseIP(service.Spec.ClusterIP) == nil {
		return
	}
	s.PullTunnel = &backupv1.PullTunnel{
		Address:     net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(podspec.TunnelPort)),
		ServerName:  podspec.ServiceHosts(in.Backup.Namespace, in.Pull.Export.Name)[0],
		Authorities: authorities,
	}
}

// setReady sets the condition Ready under both its names.
func setReady(in *input, s *backupv1.VirtualMachineBackupStatus, status metav1.ConditionStatus, state backupstate.State) {
	for _, name := range []string{backupv1.ConditionReady, backupv1.ConditionExportReady} {
		setCondition(s, metav1.Condition{Type: name, Status: status, Reason: state.Reason, Message: state.Message}, in.Backup.Generation, in.Now)
	}
}

// endService makes the condition Ready False once clients cannot read the backup any more. In the phase Copied, one that is
// False stays as it is; see wasReadable.
func endService(s *backupv1.VirtualMachineBackupStatus, generation int64, now time.Time) {
	if s.Phase == backupv1.BackupServing {
		return
	}
	for _, name := range []string{backupv1.ConditionReady, backupv1.ConditionExportReady} {
		c := meta.FindStatusCondition(s.Conditions, name)
		if c != nil && (c.Status == metav1.ConditionTrue || s.Phase != backupv1.BackupCopied) {
			setCondition(s, metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: string(s.Phase)}, generation, now)
		}
	}
}

// wasReadable reports whether clients could read a backup in the phase Copied when it was deleted.
func wasReadable(s *backupv1.VirtualMachineBackupStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, backupv1.ConditionReady)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == string(backupv1.BackupCopied))
}

// forgetEndpoints removes from status what nobody can use any more.
func forgetEndpoints(s *backupv1.VirtualMachineBackupStatus) {
	s.PullTunnel, s.PullTunnels, s.PullTunnelSecret, s.ExportName, s.Cert, s.EndpointCert, s.Scratch = nil, nil, "", "", "", "", nil
	meta.RemoveStatusCondition(&s.Conditions, backupv1.ConditionScratchLow)
	for i := range s.IncludedVolumes {
		s.IncludedVolumes[i].MapEndpoint, s.IncludedVolumes[i].DataEndpoint = "", ""
	}
}

// goingLimit is how long a backup waits for its export's pod to go. A pod on a node that is gone takes longer.
const goingLimit = time.Minute

// removeChildren returns the step that removes what a backup in pull mode has made, or none. The export goes with everything
// that belongs to it: it is there until its pod is gone.
func removeChildren(in *input) (decision, bool) {
	export, secret := in.ownExport(), in.ownTunnelSecret()
	switch {
	case export != nil && export.DeletionTimestamp == nil:
		return decision{Step: stepDeleteExport, Export: export}, true
	case secret != nil:
		return decision{Step: stepDeleteTunnelSecret, Secret: secret}, true
	case export != nil && in.Now.Before(export.DeletionTimestamp.Add(goingLimit)):
		return decision{Wake: in.Now.Add(reconcile.PollInterval(in.Now.Sub(export.DeletionTimestamp.Time)))}, true
	}
	return decision{}, false
}
