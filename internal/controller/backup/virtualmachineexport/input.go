package virtualmachineexport

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
)

const (
	// retryUnwatched is when an export first looks again that waits for something that the controller does not watch; see
	// decision.lookAgain.
	retryUnwatched = 2 * time.Second
	// retryInUse is the same for a claim that a pod of somebody else can write to. Each look lists the namespace's pods.
	retryInUse = 10 * time.Second
	// lookEvery is how often an export that runs looks after what the controller does not watch.
	lookEvery = time.Minute
	// stuckAfter is how long after the end of its grace period a deleted pod is removed by force, as when its node is
	// gone. It only reads, so it does no harm if it still runs.
	stuckAfter = 15 * time.Second
)

// input is everything that the decision depends on.
type input struct {
	Now time.Time
	// Export is not modified.
	Export *exportv1.VirtualMachineExport
	// GateOff says that feature gate VMExport is off in the configuration ConfigurationName.
	GateOff           bool
	ConfigurationName string
	Source            sourceHandler
	// Service, Pod, Token and Certificate are what has the export's names, whoever made it. Nil: nothing has. Token is what
	// spec.tokenSecretRef names, if it is set.
	Service            *corev1.Service
	Pod                *corev1.Pod
	Token, Certificate *corev1.Secret
	// Manifests is the Secret with the machine's manifests, whoever made it.
	Manifests *corev1.Secret
	// Authorities are what clients must trust, in PEM.
	Authorities string
	// RenewCertificate is when the certificate must be issued again. The zero time: at once.
	RenewCertificate time.Time
	// Proxy is where the export proxy is reached. Its zero value: there is none.
	Proxy exportproxy.Address
	// Pods is what this process remembers of the export's pods.
	Pods podHistory
	// Refusal is what the API server said when it last refused one of the export's objects. Empty: it accepted all.
	Refusal string
}

// decision is what to do, in the order of the fields.
type decision struct {
	// Expire says that the export's time is up: it is deleted, and nothing else is done.
	Expire bool
	// Status is what the export's status must be. Nil: it stays as it is.
	Status *exportv1.VirtualMachineExportStatus
	// DeletePod says to delete the export's pod, and DeleteReason is the event's reason and DeleteMessage its message. Force
	// says not to wait for the kubelet.
	DeletePod                   bool
	DeleteReason, DeleteMessage string
	Force                       bool
	// WriteService, WriteToken, WriteCertificate and WriteManifests say to create the object, or to put it right.
	WriteService, WriteToken, WriteCertificate, WriteManifests bool
	// CreatePod says to create the export's pod.
	CreatePod bool
	// RequeueAfter is when the decision changes by the passage of time, or by what is not watched.
	RequeueAfter time.Duration
}

// sooner brings the next look forward. 0 means: never.
func (d *decision) sooner(after time.Duration) {
	if after > 0 && after < d.RequeueAfter {
		d.RequeueAfter = after
	}
}
