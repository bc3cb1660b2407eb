package virtualmachineexport

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
)

// decide says what an export needs now.
func decide(in *input) decision {
	if in.Export.DeletionTimestamp != nil {
		return decision{} // the garbage collector removes what belongs to it
	}
	expires := expirationTime(in.Export)
	if !in.Now.Before(expires) {
		return decision{Expire: true}
	}
	d := decision{RequeueAfter: expires.Sub(in.Now)}
	if o := firstObstacle(in); o != nil {
		d.Status = statusWith(in, o, nil)
		d.lookAgain(in, o)
		d.stopServing(in, o)
		return d
	}
	d.prepare(in)
	o := d.servePod(in)
	if o != nil && in.Refusal != "" && d.createsSomething() {
		o = waitFor(exportv1.ReasonRefused, "The API server refuses what the export needs, and is asked again: %s", in.Refusal)
	}
	if o != nil {
		d.lookAgain(in, o)
	}
	d.Status = statusWith(in, o, linksOf(in, o == nil))
	return d
}

// expirationTime returns when the export is deleted.
func expirationTime(export *exportv1.VirtualMachineExport) time.Time {
	ttl := exportv1.DefaultTTL
	if export.Spec.TTLDuration != nil {
		ttl = export.Spec.TTLDuration.Duration
	}
	return export.CreationTimestamp.Add(ttl)
}

// firstObstacle returns why the export must not be served, or nil.
func firstObstacle(in *input) *obstacle {
	for _, check := range []func(*input) *obstacle{closedGate, takenName, func(in *input) *obstacle { return in.Source.obstacle() }, missingToken} {
		if o := check(in); o != nil {
			return o
		}
	}
	return nil
}

// closedGate catches what admission could not, for example without a KubeVirt object. A pod that is there already stays:
// a gate that is turned off admits nothing new.
func closedGate(in *input) *obstacle {
	if !in.GateOff || in.ownPod() != nil {
		return nil
	}
	return waitFor(exportv1.ReasonGateDisabled, "Feature gate %s is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt %s.",
		kubevirtv1.VMExport, in.ConfigurationName)
}

// takenName finds an object that somebody else has made under a name that the export needs.
func takenName(in *input) *obstacle {
	_, named := tokenSecretName(in.Export)
	for _, child := range []struct {
		kind  string
		found metav1.Object
		there bool
	}{
		{"Pod", in.Pod, in.Pod != nil},
		{"Service", in.Service, in.Service != nil},
		{"Secret", in.Certificate, in.Certificate != nil},
		{"Secret", in.Manifests, in.Manifests != nil},
		{"Secret", in.Token, in.Token != nil && !named},
	} {
		if child.there && !belongsTo(child.found, in.Export) {
			return pollFor(exportv1.ReasonForeign, "%s %s exists and does not belong to this export: delete it, or give the export another name.", child.kind, child.found.GetName())
		}
	}
	return nil
}

// missingToken waits for the Secret that the user has named. If the user takes it back, the export is not served any
// more. A token that is too short admits no new pod; one that is served already stays, as from a version that took any token.
func missingToken(in *input) *obstacle {
	name, named := tokenSecretName(in.Export)
	switch {
	case !named:
		return nil
	case in.Token == nil:
		return pollFor(exportv1.ReasonTokenNotFound, "Secret %s, which spec.tokenSecretRef names, does not exist.", name)
	case !hasToken(in.Token):
		return pollFor(exportv1.ReasonTokenInvalid, "Secret %s, which spec.tokenSecretRef names, has no key %s, or an empty one.", name, podspec.TokenKey)
	case podspec.TokenLength(in.Token) < podspec.MinTokenCharacters && in.ownPod() == nil:
		return pollFor(exportv1.ReasonTokenInvalid,
			"The token in Secret %s, which spec.tokenSecretRef names, has fewer than %d characters: make a longer one with openssl rand -hex 32, and put it under the key %s.",
			name, podspec.MinTokenCharacters, podspec.TokenKey)
	}
	return nil
}

// ownPod returns the export's pod, or nil.
func (in *input) ownPod() *corev1.Pod {
	if in.Pod == nil || !belongsTo(in.Pod, in.Export) {
		return nil
	}
	return in.Pod
}

// stopServing deletes the export's pod.
func (d *decision) stopServing(in *input, o *obstacle) {
	pod := in.ownPod()
	if pod == nil {
		return
	}
	if pod.DeletionTimestamp != nil {
		d.removeStuck(in, pod)
		return
	}
	d.deletePod("ExportPaused", "%s", o.message)
}

func (d *decision) deletePod(reason, format string, args ...any) {
	d.DeletePod, d.DeleteReason, d.DeleteMessage = true, reason, fmt.Sprintf(format, args...)
}

// lookAgain looks again at what is in the way. At what nobody tells of, it looks the more rarely the longer the export has waited, so
// that thousands that nobody cares for cost next to nothing.
func (d *decision) lookAgain(in *input, o *obstacle) {
	if !o.polls {
		d.sooner(o.again)
		return
	}
	var waited time.Duration
	for _, c := range in.Export.Status.Conditions {
		if c.Type == exportv1.ConditionReady && c.Status != corev1.ConditionTrue {
			waited = in.Now.Sub(c.LastTransitionTime.Time)
		}
	}
	d.sooner(max(o.again, reconcile.PollInterval(waited)))
}

// removeStuck removes a deleted pod by force that does not go.
func (d *decision) removeStuck(in *input, pod *corev1.Pod) {
	stuck := pod.DeletionTimestamp.Add(stuckAfter) // the end of its grace period, and more
	if in.Now.Before(stuck) {
		d.sooner(stuck.Sub(in.Now))
		return
	}
	d.deletePod("ExporterPodFailedOrCompleted", "Pod %s was deleted and did not end; it is removed by force.", pod.Name)
	d.Force = true
}

// prepare says what has to be written so that the pod can serve.
func (d *decision) prepare(in *input) {
	d.WriteService = in.Service == nil || !serviceLeadsTo(in.Service, exportService(in.Export, in.Source))
	if _, named := tokenSecretName(in.Export); !named {
		d.WriteToken = in.Token == nil || !hasToken(in.Token)
	}
	d.WriteManifests = manifestsDiffer(in.Manifests, manifestsSecret(in))
	d.WriteCertificate = in.Certificate == nil || !in.Now.Before(in.RenewCertificate)
	if !d.WriteCertificate {
		d.sooner(in.RenewCertificate.Sub(in.Now))
	}
	d.sooner(lookEvery)
}

func (d *decision) createsSomething() bool {
	return d.WriteService || d.WriteToken || d.WriteCertificate || d.WriteManifests || d.CreatePod
}

// servePod brings the pod one step further. It returns why the pod does not serve, or nil.
func (d *decision) servePod(in *input) *obstacle {
	pod := in.ownPod()
	switch {
	case pod == nil:
		return d.createPod(in)
	case pod.DeletionTimestamp != nil:
		d.removeStuck(in, pod)
		return waitFor(exportv1.ReasonPodLost, "Pod %s was deleted; another one is created when it has ended.", pod.Name)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		o := waitFor(exportv1.ReasonPodLost, "Pod %s ended: %s; another one is being created.", pod.Name, whyPodEnded(pod))
		d.deletePod("ExporterPodFailedOrCompleted", "%s", o.message)
		return o
	case configIn(pod) != configOf(in.Export, in.Source):
		o := waitFor(exportv1.ReasonPodPending, "The source has changed; pod %s is being replaced.", pod.Name)
		d.deletePod("ExportPaused", "%s", o.message)
		return o
	}
	return whyPodDoesNotServe(pod)
}

// createPod creates the pod, or waits if the last one was created a moment ago.
func (d *decision) createPod(in *input) *obstacle {
	if wait := in.Pods.notBefore().Sub(in.Now); wait > 0 {
		o := waitFor(exportv1.ReasonPodLost, "%d pods of this export have ended or were deleted before they could serve; the next one is created at %s.",
			in.Pods.created, in.Pods.notBefore().UTC().Format(time.RFC3339))
		o.again = wait
		return o
	}
	d.CreatePod = true
	if in.Pods.created > 0 {
		return waitFor(exportv1.ReasonPodLost, "Pod %s is gone; another one is being created.", podspec.Pod(in.Export.Name))
	}
	return waitFor(exportv1.ReasonPodPending, "Pod %s is being created.", podspec.Pod(in.Export.Name))
}

// configIn returns the configuration that a pod was made with.
func configIn(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		for _, e := range pod.Spec.Containers[i].Env {
			if e.Name == podspec.ConfigVariable {
				return e.Value
			}
		}
	}
	return ""
}
