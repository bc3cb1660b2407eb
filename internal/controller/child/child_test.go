package child

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A webhook such as KubeVirt's says that an object is invalid if there is one of its name. An object that was made before
// is made all the same.
func TestMake_asksBeforeItRefuses(t *testing.T) {
	t.Parallel()
	const label = "example.com/owner"
	made := func(owner string) []client.Object {
		return []client.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "b", Labels: map[string]string{label: owner},
		}}}
	}
	for name, c := range map[string]struct {
		there   []client.Object
		refused string
	}{
		"it was made before":    {made("owner"), ""},
		"somebody else made it": {made("other"), "made by somebody else"},
		"it is really invalid":  {nil, "there is one already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			invalid := func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				err := apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "b", nil)
				err.ErrStatus.Message = "there is one already"
				return err
			}
			fakeServer := fake.NewClientBuilder().WithObjects(c.there...).
				WithInterceptorFuncs(interceptor.Funcs{Create: invalid}).Build()
			m := Maker{Writer: fakeServer, Live: fakeServer, Label: label}
			refused, err := m.Make(t.Context(), "owner", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}})
			if err != nil || (c.refused == "") != (refused == "") || !strings.Contains(refused, c.refused) {
				t.Errorf("refused %q, error %v, want %q", refused, err, c.refused)
			}
		})
	}
}
