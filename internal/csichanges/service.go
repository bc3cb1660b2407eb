package csichanges

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/errclass"
)

// ServiceKind is the kind with which a CSI driver announces where its SnapshotMetadata service is (KEP 3314).
var ServiceKind = schema.GroupVersionKind{
	Group: "cbt.storage.k8s.io", Version: "v1alpha1", Kind: "SnapshotMetadataService",
}

// Service says how to reach the SnapshotMetadata service of a driver.
type Service struct {
	// Address is HOST:PORT. The service's certificate is for HOST, and by an authority in CA (PEM).
	Address string
	CA      []byte
	// Audience is what tokens for the service are for.
	Audience string
}

// FindService returns the service of a CSI driver. The error is errclass.NotFound if the driver announces none, or if the cluster does not
// have the kind, and errclass.Invalid if what it announces cannot be used.
func FindService(ctx context.Context, c client.Reader, driver string) (*Service, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(ServiceKind)
	err := c.Get(ctx, client.ObjectKey{Name: driver}, o)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, errclass.Errorf(errclass.NotFound, "the CSI driver %s has no SnapshotMetadataService", driver)
	}
	if err != nil {
		return nil, fmt.Errorf("get SnapshotMetadataService %s: %w", driver, err)
	}
	field := func(name string) string {
		text, _, _ := unstructured.NestedString(o.Object, "spec", name)
		return text
	}
	s := &Service{Address: field("address"), Audience: field("audience")}
	if s.CA, err = base64.StdEncoding.DecodeString(field("caCert")); err != nil {
		err = fmt.Errorf("caCert: %w", err)
	} else {
		err = s.validate()
	}
	if err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "SnapshotMetadataService %s: %w", driver, err)
	}
	return s, nil
}

func (s *Service) validate() error {
	host, port, err := net.SplitHostPort(s.Address)
	switch {
	case err != nil:
		return fmt.Errorf("address %q: %w", s.Address, err)
	case host == "" || port == "":
		return fmt.Errorf("address %q is no HOST:PORT", s.Address)
	case s.Audience == "":
		return fmt.Errorf("no audience")
	}
	return nil
}

// TokenSource returns a token for an audience, of an account that may get the snapshots that are asked for. It is called before each attempt.
type TokenSource func(ctx context.Context, audience string) (string, error)
