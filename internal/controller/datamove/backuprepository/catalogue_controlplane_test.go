//go:build controlplane

package backuprepository

import (
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/test/controlplane"
)

// A BackupRepository that a catalogue has made stands for the repository of another cluster. It waits for the password, opens it, and says
// when it is gone. Nothing is made on its account: no password, no repository, not even for another namespace beside it.
func fromACatalogue(w *world) {
	theirs := w.theirs("shop")
	w.start(controlplane.Controller)
	shop := w.catalogued("shop", theirs.UniqueID)
	name := datamove.LocationPasswordSecret(w.at())
	w.becomes(shop, isNotReady, "its password is not here: put it into the key password of Secret "+w.ns+"/"+name)
	own := w.repository("bank")
	w.becomes(own, isNotReady, "of namespace shop), and its password is not here")

	// It goes, unread.
	gone := w.theirs("gone")
	lost := w.catalogued("gone", gone.UniqueID)
	w.becomes(lost, isNotReady, "its password is not here")
	place := filepath.Join(w.dir, "b", "plugins", "varve", "gone")
	if err := w.store.alone(func() error { return os.RemoveAll(place) }); err != nil {
		w.Fatal(err)
	}
	w.becomesLater(checkEvery, lost, isNotReady, "any more")

	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, StringData: map[string]string{datamove.PasswordKey: "theirs"}})
	w.becomesLater(lookEvery, shop, isReady, "")
	if a := w.access(shop, nil); a.UniqueID != theirs.UniqueID || a.Password != "theirs" {
		w.Error("the access is another one")
	}
	w.becomesLater(lastRetry, lost, isNotReady, "the repository is not in")
	if _, err := os.Stat(place); !os.IsNotExist(err) {
		w.Errorf("a repository was made on a catalogue's account: %v", err)
	}
	// Another one in its place is not taken for it.
	if other := w.theirs("gone"); other.UniqueID == gone.UniqueID {
		w.Fatal("two repositories have one ID")
	}
	w.becomesLater(lastRetry, lost, isNotReady, "another repository has taken the place of this one")
	var s corev1.Secret
	if err := w.admin.Get(w.Context(), types.NamespacedName{Namespace: w.ns, Name: lost.Name}, &s); !apierrors.IsNotFound(err) {
		w.Errorf("movers have access to what is not there: %v", err)
	}
}

// theirs makes the repository of a namespace, as another cluster does.
func (w *world) theirs(namespace string) datamove.Access {
	w.Helper()
	place := location.Place{S3: &datamove.S3Access{Bucket: "b"}}
	a := place.Access(namespace)
	a.Password = "theirs"
	var err error
	if a.UniqueID, err = w.store.Prepare(w.Context(), a, location.Lock{}); err != nil {
		w.Fatal(err)
	}
	return a
}

// catalogued makes a BackupRepository, as the catalogue does.
func (w *world) catalogued(namespace, uniqueID string) *velerov1.BackupRepository {
	w.Helper()
	repo := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.ns, Name: datamove.RepositoryName(namespace, w.at()), Annotations: map[string]string{datamove.AnnotationUniqueID: uniqueID},
	}}
	repo.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: namespace, BackupStorageLocation: "default", RepositoryType: "kopia", RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: w.velero},
	}
	w.create(repo)
	return repo
}
