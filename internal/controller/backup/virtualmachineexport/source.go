package virtualmachineexport

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// sourceHandler is what an export serves, as it was found. Its methods are pure.
type sourceHandler interface {
	// obstacle returns why the source cannot be served now. Nil: it can.
	obstacle() *obstacle
	// claimsReady returns the obstacle that the condition PVCReady shows, or nil, and whether the export has that condition.
	claimsReady() (*obstacle, bool)
	// machine returns the name of the virtual machine, if the source is one.
	machine() string
	// ports are the ports of the export's Service besides the one for clients.
	ports() []corev1.ServicePort
	// reachableUnready says that the Service must lead to a pod that is not ready.
	reachableUnready() bool
	// describe tells the export pod what it serves. It is called only when there is no obstacle, as are those below.
	describe(config *podspec.Config)
	// equip gives the export pod's only container what it needs for the source.
	equip(pod *corev1.PodSpec)
	// addLinks adds the addresses of what is served below base, which is a URL without a path's end.
	addLinks(link *exportv1.VirtualMachineExportLink, base string)
}

// obstacle is why an export is not served.
type obstacle struct {
	phase           exportv1.VirtualMachineExportPhase
	reason, message string
	// again is when to look again, because nothing tells when the obstacle is gone. 0: something does.
	again time.Duration
	// polls says that the looks become rarer with time.
	polls bool
}

func waitFor(reason, format string, args ...any) *obstacle {
	return &obstacle{phase: exportv1.ExportPending, reason: reason, message: fmt.Sprintf(format, args...)}
}

// pollFor is waitFor for something that the controller does not watch.
func pollFor(reason, format string, args ...any) *obstacle {
	o := waitFor(reason, format, args...)
	o.again, o.polls = retryUnwatched, true
	return o
}

func skip(reason, format string, args ...any) *obstacle {
	o := waitFor(reason, format, args...)
	o.phase = exportv1.ExportSkipped
	return o
}

func terminate(reason, format string, args ...any) *obstacle {
	o := waitFor(reason, format, args...)
	o.phase = exportv1.ExportTerminated
	return o
}
