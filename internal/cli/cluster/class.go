package cluster

import (
	"context"
	"errors"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/varvebackup/varve/internal/errclass"
)

// Class is the kind of failure that an error is, as precise as the hints for users are.
type Class int

const (
	// Failure is every error that has no class of its own.
	Failure Class = iota
	// NotFound: the object does not exist.
	NotFound
	// NotInstalled: the server does not know the kind.
	NotInstalled
	// Exists: an object of that name already exists.
	Exists
	// Conflict: the object changed while it was being changed.
	Conflict
	// Invalid: the server refused the content.
	Invalid
	// Forbidden: the user may not do it.
	Forbidden
	// Unauthorized: the server does not know the user.
	Unauthorized
	// Unreachable: no server answered.
	Unreachable
	// Unconfigured: no kubeconfig says where the server is.
	Unconfigured
	// Interrupted: the user ended the command.
	Interrupted
)

// errorClasses are the classes that the kinds of failure belong to.
var errorClasses = map[Class]error{
	NotFound: errclass.NotFound, Exists: errclass.Conflict, Conflict: errclass.Conflict, Invalid: errclass.Invalid,
	Forbidden: errclass.Denied, Unauthorized: errclass.Denied, Unreachable: errclass.Transient,
}

// ErrorClass returns the class of package errclass, or nil if the failure has none.
func (c Class) ErrorClass() error { return errorClasses[c] }

// Classify returns the class of an error that a Client returned.
func Classify(err error) Class {
	var dial *url.Error
	var network *net.OpError
	switch {
	case errors.Is(err, context.Canceled):
		return Interrupted
	case clientcmd.IsEmptyConfig(err), clientcmd.IsConfigurationInvalid(err):
		return Unconfigured
	case notInstalled(err):
		return NotInstalled
	case apierrors.IsNotFound(err):
		return NotFound
	case apierrors.IsAlreadyExists(err):
		return Exists
	case apierrors.IsConflict(err):
		return Conflict
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return Invalid
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case errors.As(err, &dial), errors.As(err, &network):
		return Unreachable
	default:
		return Failure
	}
}

// notInstalled tells "no such path" from "no such object": only the latter comes from a resource's own handler.
func notInstalled(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil || details.Kind == "" {
		return true
	}
	for _, cause := range details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}
