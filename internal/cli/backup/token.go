package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// tokenBytes is how many random bytes a token has.
const tokenBytes = 32

// createToken makes the Secret that a backup names, with a random token. It belongs to the backup, and goes with it.
func createToken(ctx context.Context, c *cluster.Client, b *backupv1.VirtualMachineBackup) error {
	var token [tokenBytes]byte
	_, _ = rand.Read(token[:]) // it never fails
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: *b.Spec.TokenSecretRef, Labels: b.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: backupv1.GroupVersion.String(), Kind: "VirtualMachineBackup", Name: b.Name, UID: b.UID}},
		},
		StringData: map[string]string{podspec.TokenKey: hex.EncodeToString(token[:])},
	}
	if err := c.Create(ctx, secret); err != nil {
		return fmt.Errorf("create the Secret %s/%s with the token of backup %s: %w", secret.Namespace, secret.Name, b.Name, err)
	}
	return nil
}

// createWithToken creates a backup and its token. Without the token, nothing is left.
func createWithToken(ctx context.Context, c *cluster.Client, b *backupv1.VirtualMachineBackup, newToken bool) error {
	if err := c.Create(ctx, b); err != nil {
		return fmt.Errorf("create backup in namespace %s: %w", c.Namespace, err)
	}
	if !newToken {
		return nil
	}
	err := createToken(ctx, c, b)
	if err != nil {
		if undone := c.Delete(context.WithoutCancel(ctx), b, ofUID(b)); undone != nil {
			err = errors.Join(err, fmt.Errorf("delete backup %s again: %w", b.Name, undone))
		}
	}
	return err
}
