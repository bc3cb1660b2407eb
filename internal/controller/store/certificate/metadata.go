package certificate

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"reflect"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/store/names"
)

// announceMetadata writes where the stores' service is, and the authorities of its certificate, if the cluster has the
// kind.
func (r *reconciler) announceMetadata(ctx context.Context, authorities []byte) error {
	wanted := map[string]any{
		"address":  net.JoinHostPort(names.MetadataHost(r.Namespace), strconv.Itoa(names.MetadataPort)),
		"audience": names.Driver,
		"caCert":   base64.StdEncoding.EncodeToString(authorities),
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(csichanges.ServiceKind)
	err := r.live.Get(ctx, client.ObjectKey{Name: names.Driver}, o)
	switch {
	case meta.IsNoMatchError(err):
		return nil
	case apierrors.IsNotFound(err):
		o.SetName(names.Driver)
		o.SetLabels(map[string]string{labelManager: manager})
		o.Object["spec"] = wanted
		err = r.writer.Create(ctx, o)
	case err == nil && reflect.DeepEqual(o.Object["spec"], any(wanted)):
	case err == nil:
		o.Object["spec"] = wanted
		err = r.writer.Update(ctx, o)
	}
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // the kind was removed
		return nil
	}
	if err != nil {
		return fmt.Errorf("announce the metadata of snapshots: write SnapshotMetadataService %s: %w", names.Driver, err)
	}
	return nil
}
