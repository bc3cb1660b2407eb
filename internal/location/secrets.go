package location

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// ReadSecrets reads the Secrets that Parse needs. One that does not exist is missing in the result, and no error.
func ReadSecrets(ctx context.Context, from client.Reader, l *velerov1.BackupStorageLocation) (Secrets, error) {
	secrets := Secrets{}
	for _, name := range SecretNames(l) {
		s, err := reconcile.Find(ctx, from, types.NamespacedName{Namespace: l.Namespace, Name: name}, &corev1.Secret{})
		if err != nil {
			return nil, err
		}
		if s != nil {
			secrets[name] = s.Data
		}
	}
	return secrets, nil
}
