package disk

import (
	"context"
	"errors"
	"math/bits"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	minClusterBytes = 1 << minClusterBits
	// defaultClusterBytes is also the largest size of a layer's clusters: a larger one copies more of what did not change.
	defaultClusterBytes = 64 << 10
)

// Layer makes a target a qcow2 image that has only what is written to it. Where nothing is written, what is below shows
// through once SetBacking has named it. So Zero marks zeroes even where the image, without what is below, has them anyway.
type Layer struct {
	// ClusterBytes is the size of the image's clusters: LayerClusterBytes of what will be written.
	ClusterBytes int64
}

// LayerClusterBytes returns the largest size of clusters with which every cluster is written as a whole, or not at all,
// if these are all offsets at which writes begin and end. Half a cluster would hide what is below the other half. It is 0 if
// there is none: QEMU's smallest cluster has 512 bytes.
func LayerClusterBytes(bounds ...int64) int64 {
	union := int64(defaultClusterBytes)
	for _, b := range bounds {
		union |= b
	}
	if size := int64(1) << bits.TrailingZeros64(uint64(union)); size >= minClusterBytes {
		return size
	}
	return 0
}

func (l *Layer) clusterBytes() int64 {
	if l == nil {
		return defaultClusterBytes
	}
	return l.ClusterBytes
}

func (l *Layer) validate(spec string, format Format) error {
	switch {
	case l == nil:
		return nil
	case format != QCOW2 || IsURI(spec):
		return errclass.Errorf(ErrArgument, "target %s: only a qcow2 image can be a layer", spec)
	case l.ClusterBytes < minClusterBytes || l.ClusterBytes > defaultClusterBytes || l.ClusterBytes&(l.ClusterBytes-1) != 0:
		return errclass.Errorf(errclass.Invalid, "target %s: clusters of %d bytes", spec, l.ClusterBytes)
	}
	return nil
}

// SetBacking names the image below a layer that is complete and closed. A relative name counts from the layer's directory.
// The caller syncs the layer.
func SetBacking(ctx context.Context, layer, backing string, format Format) error {
	if hasProtocol(backing) || len(backing) > maxBackingNameBytes {
		return errclass.Errorf(errclass.Invalid, "backing file %s: the name has a colon, or is too long", backing)
	}
	image, err := openWritableImage(layer, 0)
	if err != nil {
		return err
	}
	return errors.Join(renameBacking(ctx, image.files[0].file, backing, format), image.close())
}
