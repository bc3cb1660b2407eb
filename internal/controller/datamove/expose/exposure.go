package expose

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

// ErrRefused is in each error that says that the volume can never be exposed or handed over. The text says what to do. All other
// errors may pass.
var ErrRefused = errclass.New(errclass.Invalid, "refused")

func refuse(format string, args ...any) error { return errclass.Errorf(ErrRefused, format, args...) }

// Exposure is how far the exposure of a volume is.
type Exposure struct {
	// Waiting is what it waits for; "" if Volume is set.
	Waiting string
	// Until is when it is not waited for any longer, and the exposure goes on without it; zero: it cannot.
	Until time.Time
	// Notice is what the object's owner must be told of, in a sentence, with a step that is made once; or "".
	Notice string
	// Volume is set when a pod may be made that mounts it.
	Volume *Volume
	// Diagnosis is what is known about a Volume that is made only when a pod needs it, such as why its driver failed to; or "".
	Diagnosis string
}

// Volume is what a mover pod mounts, or where it reads a disk that has no claim.
type Volume struct {
	// Claim is the name of the claim in Varve's namespace; "" for a disk that has none.
	Claim string
	// VolumeMode is the claim's: Filesystem or Block.
	VolumeMode corev1.PersistentVolumeMode
	// ReadOnly says that the claim is ReadOnlyMany. The pod must mount it read-only.
	ReadOnly bool
	// Bytes is what the claim asks for.
	Bytes int64
	// DiskBytes is how many of its first bytes are the disk that is stored; 0: all.
	DiskBytes int64
	// DiskChecksum is their SHA-512, with DiskBytes.
	DiskChecksum string
	// NodeAffinity is where the volume can be reached from; nil: from everywhere, or not known.
	NodeAffinity *corev1.NodeSelector
	// SourceUID is the UID of the claim that an upload's snapshot is of; "" if it is not known.
	SourceUID types.UID
	// Snapshot is the snapshot that a Block volume was made from; nil for all others.
	Snapshot *datamove.SnapshotSource
	// OfImage says that a Block volume to restore to was made as a clone of an image.
	OfImage bool
	// Endpoint is where the disk is read if it is in a pull backup, or in an export; nil for all others.
	Endpoint *datamove.EndpointSource
	// Tunnel is which disk of a running machine it is; nil for all others.
	Tunnel *datamove.TunnelSource
}

// OfMachine says that the disk may be stored with the others of its machine: a running one's, or a stopped one's.
func (v *Volume) OfMachine() bool { return v.Tunnel != nil || v.Endpoint != nil }

// Progress is how far Finish or Dispose is.
type Progress struct {
	// Done says that nothing remains to be done.
	Done bool
	// Waiting is what it waits for; "" if Done.
	Waiting string
	// Left is what was not touched because it belongs to somebody else, although its name is one that would be removed; or "".
	Left string
}

func waitFor(what string) Progress { return Progress{Waiting: what} }

// Access is how an exposer reaches the API server.
type Access struct {
	// Live reads from the API server, not from a cache.
	Live   client.Reader
	Writer client.Writer
	// Namespace is Varve's own.
	Namespace string
	Clock     clock.PassiveClock
	// Options returns the settings that hold now. nil: the defaults.
	Options func() Options
}

// Options are the settings of exposers.
type Options struct {
	// Classes has what is special about uploads of volumes, by the StorageClass of their claims.
	Classes map[string]Class
	// PrepareTimeout is how long it may take until a mover pod runs; 0: nobody says.
	PrepareTimeout time.Duration
	// ConsumerWait is how long a restore of Velero's waits for a pod that uses the target claim, if the claim's class
	// makes volumes for a first consumer: the volume is made on the node of that pod. Afterwards, and for all other
	// restores, it is made on that node if there is one by then, and else where the mover pod runs. 0: nobody waits.
	ConsumerWait time.Duration
}

// Class is how volumes of a StorageClass are exposed.
type Class struct {
	// StorageClass is the class of the claim that is made from a snapshot; "": the source's.
	StorageClass string
	// ReadOnly makes that claim ReadOnlyMany, which lets some drivers show the snapshot itself instead of a copy.
	ReadOnly bool
	// Annotations are those of that claim, for its driver.
	Annotations map[string]string
	// ReadWhole: the driver is not asked what a snapshot has, and what has changed.
	ReadWhole bool
	// KeepSnapshot has the snapshot of a claim's latest restore point kept, so that the next upload can be counted from it.
	KeepSnapshot bool
}

func (a Access) options() Options {
	if a.Options == nil {
		return Options{}
	}
	return a.Options()
}
