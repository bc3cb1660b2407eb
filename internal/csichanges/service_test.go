package csichanges

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/varvebackup/varve/internal/errclass"
)

func serviceObject(spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(ServiceKind)
	o.SetName("csi.example.com")
	return o
}

func TestFindService(t *testing.T) {
	t.Parallel()
	authorities := base64.StdEncoding.EncodeToString([]byte("PEM"))
	for name, c := range map[string]struct {
		spec  map[string]any
		class error
		says  string
	}{
		"as documented":         {map[string]any{"address": "metadata.csi:6443", "audience": "a", "caCert": authorities}, nil, ""},
		"none":                  {nil, errclass.NotFound, "csi.example.com"},
		"no address":            {map[string]any{"audience": "a", "caCert": authorities}, errclass.Invalid, "address"},
		"no port":               {map[string]any{"address": "metadata.csi", "audience": "a", "caCert": authorities}, errclass.Invalid, "address"},
		"no host":               {map[string]any{"address": ":6443", "audience": "a", "caCert": authorities}, errclass.Invalid, "address"},
		"no audience":           {map[string]any{"address": "metadata.csi:6443", "caCert": authorities}, errclass.Invalid, "audience"},
		"no base64":             {map[string]any{"address": "metadata.csi:6443", "audience": "a", "caCert": "-----BEGIN"}, errclass.Invalid, "caCert"},
		"fields of other types": {map[string]any{"address": int64(1), "audience": "a", "caCert": authorities}, errclass.Invalid, "address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			builder := fake.NewClientBuilder().WithScheme(runtime.NewScheme())
			if c.spec != nil {
				builder = builder.WithObjects(serviceObject(c.spec))
			}
			s, err := FindService(t.Context(), builder.Build(), "csi.example.com")
			if c.class != nil {
				if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || s.Address != "metadata.csi:6443" || string(s.CA) != "PEM" || s.Audience != "a" {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// An API server that does not answer says nothing about a driver.
func TestFindService_takesNoErrorForAbsence(t *testing.T) {
	t.Parallel()
	broken := errors.New("no answer")
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return broken
		},
	})
	if _, err := FindService(t.Context(), c, "csi.example.com"); !errors.Is(err, broken) || errors.Is(err, errclass.NotFound) {
		t.Errorf("%v", err)
	}
}

func TestNewClient_refuses(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Service{
		"no address":   {CA: []byte("PEM"), Audience: "a"},
		"no authority": {Address: "metadata.csi:6443", CA: []byte("no PEM"), Audience: "a"},
	} {
		if _, err := NewClient(&s, nil, Limits{}); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
