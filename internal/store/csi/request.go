package csi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// Parameters of a StorageClass. They are Longhorn's.
const (
	parameterEngine       = "dataEngine"
	parameterImage        = "backingImage"
	parameterReplicas     = "numberOfReplicas"
	parameterDiskSelector = "diskSelector"
	parameterNodeSelector = "nodeSelector"
	parameterFileSystem   = "fsType"
	reservedPrefix        = "csi.storage.k8s.io/"

	parameterClaim          = reservedPrefix + "pvc/name"
	parameterClaimNamespace = reservedPrefix + "pvc/namespace"
	parameterReservedFS     = reservedPrefix + "fstype"
)

const (
	// blockBytes is the unit of volumes' sizes, which direct I/O needs.
	blockBytes = 4096
	// defaultBytes is the size of a volume that is asked for without one.
	defaultBytes = 1 << 30
	fileSystem   = "ext4"
)

// volume is what a volume shall be.
type volume struct {
	handle                     string
	bytes                      int64
	image                      string
	base                       *longhornv1.BackingImage // the image, if it was read
	origin                     origin
	diskSelector, nodeSelector []string
	claim                      longhornv1.KubernetesStatus
}

// describeVolume checks a request for a volume.
func describeVolume(r *csi.CreateVolumeRequest) (volume, error) {
	if r.GetName() == "" {
		return volume{}, errclass.Errorf(errclass.Invalid, "name is empty: name the volume")
	}
	v := volume{handle: names.VolumeHandle(r.GetName())}
	if err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
		return volume{}, err
	}
	if err := v.readParameters(r.GetParameters()); err != nil {
		return volume{}, err
	}
	var err error
	if v.origin, err = describeOrigin(r.GetVolumeContentSource()); err != nil {
		return volume{}, err
	}
	if v.origin != (origin{}) {
		v.image = "" // the class may name the image of the volume that is cloned
	}
	v.bytes, err = chooseSize(r.GetCapacityRange())
	if v.origin != (origin{}) && r.GetCapacityRange().GetRequiredBytes() == 0 {
		v.bytes = 0 // it has the size of what it is made of
	}
	return v, err
}

func (v *volume) readParameters(parameters map[string]string) error {
	for key, value := range parameters {
		wanted := value
		switch key {
		case parameterEngine:
			wanted = string(longhornv1.DataEngineV2)
		case parameterReplicas:
			wanted = "1"
		case parameterFileSystem, parameterReservedFS:
			wanted = fileSystem
		case parameterImage:
			v.image = value
		case parameterDiskSelector:
			v.diskSelector = splitList(value)
		case parameterNodeSelector:
			v.nodeSelector = splitList(value)
		case parameterClaim:
			v.claim.PVCName = value
		case parameterClaimNamespace:
			v.claim.Namespace = value
		default:
			if !strings.HasPrefix(key, reservedPrefix) {
				return errclass.Errorf(errclass.Invalid, "%s does not know the parameter %s of the StorageClass: leave it out",
					names.Driver, key)
			}
		}
		if value != wanted {
			return errclass.Errorf(errclass.Invalid, "the parameter %s of the StorageClass is %q: use %q", key, value, wanted)
		}
	}
	v.claim.PVName = v.handle
	return nil
}

// splitList splits a list at commas.
func splitList(list string) []string {
	var all []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			all = append(all, item)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// chooseSize returns the size of a volume in bytes: whole blocks.
func chooseSize(r *csi.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || (limit > 0 && required > limit) {
		return 0, errclass.Errorf(errclass.Invalid, "the size must be from %d to %d bytes: no size is", required, limit)
	}
	if required == 0 {
		required = defaultBytes
		if limit > 0 {
			required = max(min(required, limit/blockBytes*blockBytes), 1)
		}
	}
	const mostBytes = 1 << 62
	bytes := (min(required, mostBytes) + blockBytes - 1) / blockBytes * blockBytes
	if required > mostBytes || (limit > 0 && bytes > limit) {
		return 0, errclass.Errorf(errSize, "%d bytes are asked for, and at most %d: sizes are multiples of %d, up to %d",
			required, limit,
			blockBytes, int64(mostBytes))
	}
	return bytes, nil
}

// checkCapabilities returns an error of class Invalid if volumes lack one of the capabilities.
func checkCapabilities(all []*csi.VolumeCapability) error {
	if len(all) == 0 {
		return errclass.Errorf(errclass.Invalid, "the volume's capability is missing: say how it is to be used")
	}
	for _, c := range all {
		switch mode := c.GetAccessMode().GetMode(); mode {
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return errclass.Errorf(errclass.Invalid,
				"the access mode is %s: a volume of %s is on one node, so use ReadWriteOnce", mode,
				names.Driver)
		}
		if fs := c.GetMount().GetFsType(); fs != "" && fs != fileSystem {
			return errclass.Errorf(errclass.Invalid, "the file system is %s: use %s", strconv.Quote(fs), fileSystem)
		}
	}
	return nil
}
