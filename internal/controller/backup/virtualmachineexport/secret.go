package virtualmachineexport

import (
	"crypto/rand"
	"math/big"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// tokenCharacters is the length of a token, as upstream's. With 62 letters and digits that is 119 bits.
const tokenCharacters = 20

const tokenAlphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// newToken returns a random token.
func newToken() string {
	token := make([]byte, tokenCharacters)
	for i := range token {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(tokenAlphabet))))
		if err != nil {
			panic(err) // never: crypto/rand ends the program instead
		}
		token[i] = tokenAlphabet[n.Int64()]
	}
	return string(token)
}

// tokenSecretName returns the name of the Secret with the export's token, and whether the user named it.
func tokenSecretName(export *exportv1.VirtualMachineExport) (name string, named bool) {
	if ref := export.Spec.TokenSecretRef; ref != nil {
		return *ref, true
	}
	return podspec.TokenSecret(export.Name), false
}

func tokenSecret(export *exportv1.VirtualMachineExport) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: childMeta(export, podspec.TokenSecret(export.Name)),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{podspec.TokenKey: []byte(newToken())},
	}
}

func certificateSecret(export *exportv1.VirtualMachineExport, c authority.Certificate) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: childMeta(export, podspec.CertificateSecret(export.Name)),
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: c.Certificate, corev1.TLSPrivateKeyKey: c.Key},
	}
}

// hasToken reports whether a Secret has a token.
func hasToken(secret *corev1.Secret) bool { return podspec.TokenLength(secret) > 0 }
