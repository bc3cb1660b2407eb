package catalogue

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// named is how many namespaces an event names.
const named = 10

// Recorder makes the objects.
type Recorder struct {
	// Namespace is Varve's own. BackupRepositories are there.
	Namespace string
	// Client reads from a cache, and Live from the API server.
	Client client.Client
	Live   client.Reader
	Events events.EventRecorder
}

// Known returns the namespaces whose repositories in a location have an object.
func (r *Recorder) Known(ctx context.Context, where datamove.Location) ([]string, error) {
	list := &velerov1.BackupRepositoryList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list backup repositories: %w", err)
	}
	var known []string
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.BackupStorageLocation == where.Name && spec.RepositoryConfig[datamove.ConfigLocationNamespace] == where.Namespace {
			known = append(known, spec.VolumeNamespace)
		}
	}
	return known, nil
}

// Record makes the objects for what was found in a location, which must be as it was then.
func (r *Recorder) Record(ctx context.Context, l *velerov1.BackupStorageLocation, c repositoryaccess.Catalogue) error {
	if len(c.Found) == 0 {
		return nil
	}
	// A cache may have a location that is deleted, or led elsewhere, by now.
	now, err := reconcile.Find(ctx, r.Live, client.ObjectKeyFromObject(l), &velerov1.BackupStorageLocation{})
	if err != nil || now == nil || now.DeletionTimestamp != nil || now.UID != l.UID || !equality.Semantic.DeepEqual(now.Spec, l.Spec) {
		return err
	}
	known, err := r.Known(ctx, client.ObjectKeyFromObject(l))
	if err != nil {
		return err
	}
	var made []string
	for _, f := range c.Found {
		if len(known)+len(made) >= repositoryaccess.MaxCatalogued {
			break
		}
		switch err := r.Client.Create(ctx, r.newRepository(l, f)); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			return fmt.Errorf("create the BackupRepository of namespace %s in location %s/%s: %w", f.Namespace, l.Namespace, l.Name, err)
		default:
			made = append(made, f.Namespace)
		}
	}
	if len(known)+len(made) >= repositoryaccess.MaxCatalogued {
		r.Events.Eventf(l, nil, corev1.EventTypeWarning, "CatalogueFull", "List", "%d repositories of the location have a BackupRepository: no others are looked for.", len(known)+len(made))
	}
	if len(made) > 0 {
		text := strings.Join(made[:min(len(made), named)], ", ")
		if len(made) > named {
			text += fmt.Sprintf(" and %d others", len(made)-named)
		}
		r.Events.Eventf(l, nil, corev1.EventTypeNormal, "RepositoriesFound", "List", "The location has repositories of namespaces %s.", text)
	}
	return nil
}

func (r *Recorder) newRepository(l *velerov1.BackupStorageLocation, f repositoryaccess.Found) *velerov1.BackupRepository {
	return &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Namespace, Name: datamove.RepositoryName(f.Namespace, client.ObjectKeyFromObject(l)),
			Annotations: map[string]string{datamove.AnnotationUniqueID: f.UniqueID},
		},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: f.Namespace, BackupStorageLocation: l.Name, RepositoryType: velerov1.RepositoryKopia,
			RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: l.Namespace},
		},
	}
}

// IsWanted says whether a location is to be looked at: spec.backupSyncPeriod is not 0.
func IsWanted(l *velerov1.BackupStorageLocation) bool {
	return l.DeletionTimestamp == nil && (l.Spec.BackupSyncPeriod == nil || l.Spec.BackupSyncPeriod.Duration > 0)
}
