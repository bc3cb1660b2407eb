package backingimage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// messageBytes bounds the messages in a status.
	messageBytes = 1024
	// namesListed is how many volumes or disks a message names.
	namesListed = 10
	// pollSource is the pause before a look at the source's objects that tell nobody what becomes of them.
	pollSource = 2 * time.Second
	// pollDisks is the pause before another look for a disk: no event tells that space was freed.
	pollDisks = time.Minute
)

// plan is what a decision says.
type plan struct {
	status longhornv1.BackingImageStatus
	// disks is spec.diskFileSpecMap as it must become.
	disks map[string]*longhornv1.BackingImageDiskFileSpec
	// finalizer is whether the image has the finalizer.
	finalizer bool
	source    sourceAction
	// sourceNode is the node of a source that is made.
	sourceNode string
	// next is when to look again without an event. 0: not at all.
	next time.Duration
}

// sourceAction says what becomes of the source's objects.
type sourceAction string

const (
	keepSource   sourceAction = ""
	makeSource   sourceAction = "make"
	removeSource sourceAction = "remove"
	// abandonSource removes a pod without waiting for its node, which may be gone. The pod writes to a head on a disk of
	// that node, which nobody else uses and which its store deletes when it comes back.
	abandonSource sourceAction = "abandon"
)

// lookWithin asks for another look within a time.
func (p *plan) lookWithin(d time.Duration) {
	d = max(d, time.Second)
	if p.next == 0 || d < p.next {
		p.next = d
	}
}

// decide decides about one image.
func decide(in *input) *plan {
	p := &plan{
		status: *in.image.Status.DeepCopy(), disks: maps.Clone(in.image.Spec.DiskFileSpecMap),
		finalizer: slices.Contains(in.image.Finalizers, longhornv1.BackingImageFinalizer),
	}
	if p.disks == nil {
		p.disks = map[string]*longhornv1.BackingImageDiskFileSpec{}
	}
	if in.image.DeletionTimestamp != nil {
		in.decideDeletion(p)
		return p
	}
	p.finalizer = true
	if p.status.UUID == "" {
		p.status.UUID = in.newUUID
	}
	if p.status.V2FirstCopyStatus == "" {
		p.status.V2FirstCopyStatus = longhornv1.StatePending
	}
	in.mergeReports(p)
	why := in.decideFirstCopy(p)
	if p.status.V2FirstCopyStatus == longhornv1.StateReady {
		why = in.decideCopies(p)
	}
	in.describeNewDisks(p)
	in.summarize(p, why)
	return p
}

// summarize says whether volumes can be cloned from the image. why is what a decision has to say.
func (in *input) summarize(p *plan, why reason) {
	s := &p.status
	s.ReadyCopies = 0
	var ready []string
	for disk, copied := range s.DiskFileStatusMap {
		if copied.State == longhornv1.StateReady && p.disks[disk] != nil {
			s.ReadyCopies++
			ready = append(ready, in.describeDisk(disk))
		}
	}
	slices.Sort(ready)
	switch {
	case s.ReadyCopies > 0:
		text := joinNames("copies are ready on ", ready)
		if why.message != "" {
			text += "; " + why.message
		}
		in.setReady(p, metav1.ConditionTrue, longhornv1.ReasonImageReady, text)
	case s.V2FirstCopyStatus == longhornv1.StateReady:
		in.setReady(p, metav1.ConditionFalse, longhornv1.ReasonNoReadyCopy, in.explainLoss(p))
	default:
		in.setReady(p, metav1.ConditionFalse, why.reason, why.message)
	}
}

// explainLoss says why an image that was ready has no copy that is.
func (in *input) explainLoss(p *plan) string {
	var all []string
	for _, disk := range slices.Sorted(maps.Keys(p.status.DiskFileStatusMap)) {
		c := p.status.DiskFileStatusMap[disk]
		all = append(all, fmt.Sprintf("%s: %s (%s)", in.describeDisk(disk), c.State, c.Message))
	}
	return joinNames("no copy is ready: bring back a node or a disk that has one, or else make the image again under "+
		"another name: ", all)
}

// reason is why something waits: a reason and a message of the condition Ready.
type reason struct{ reason, message string }

func (in *input) setReady(p *plan, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.status.Conditions, metav1.Condition{
		Type: longhornv1.ConditionReady, Status: status, Reason: reason, ObservedGeneration: in.image.Generation,
		Message: reconcile.CutText(message, messageBytes), LastTransitionTime: metav1.NewTime(in.now).Rfc3339Copy(),
	})
}

// joinNames returns a text with the first names of a list.
func joinNames(text string, all []string) string {
	if n := len(all); n > namesListed {
		return text + strings.Join(all[:namesListed], ", ") + fmt.Sprintf(" and %d more", n-namesListed)
	}
	return text + strings.Join(all, ", ")
}
