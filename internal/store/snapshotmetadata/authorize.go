package snapshotmetadata

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// question names a VolumeSnapshot, and has the token of whoever asks about it.
type question struct{ token, namespace, name string }

// authorize returns the name of the user to whom the token belongs, and an error unless that user may get the
// VolumeSnapshot. No message has the token.
func (s *server) authorize(ctx context.Context, asked question) (user string, err error) {
	if asked.token == "" || asked.namespace == "" || asked.name == "" {
		return "", errclass.Errorf(errclass.Invalid, "security_token, namespace or the snapshot's name is empty: set "+
			"all three")
	}
	review, err := s.o.Kubernetes.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: asked.token, Audiences: []string{names.Driver}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", errclass.Errorf(errclass.Transient, "have the API server review the token: %w", err)
	}
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, names.Driver) {
		return "", status.Errorf(codes.Unauthenticated, "the token is not valid for the audience %s", names.Driver)
	}
	user = review.Status.User.Username
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range review.Status.User.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, UID: review.Status.User.UID, Groups: review.Status.User.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: snapshotv1.GroupName, Resource: "volumesnapshots", Namespace: asked.namespace,
			Name: asked.name,
		},
	}}
	access, err = s.o.Kubernetes.AuthorizationV1().SubjectAccessReviews().Create(ctx, access, metav1.CreateOptions{})
	if err != nil {
		return "", errclass.Errorf(errclass.Transient, "ask the API server who may get VolumeSnapshots: %w", err)
	}
	if !access.Status.Allowed {
		return user, errclass.Errorf(errclass.Denied, "%s may not get VolumeSnapshot %s/%s", user, asked.namespace,
			asked.name)
	}
	return user, nil
}

// findHandle returns the CSI handle of a VolumeSnapshot of this driver. It and its content must name each other.
func (s *server) findHandle(ctx context.Context, asked question) (string, error) {
	client := s.o.Snapshots.SnapshotV1()
	snapshot, err := client.VolumeSnapshots(asked.namespace).Get(ctx, asked.name, metav1.GetOptions{})
	if err != nil {
		return "", describeMissing("VolumeSnapshot "+asked.namespace+"/"+asked.name, err)
	}
	content := ""
	if snapshot.Status != nil {
		content = ptr.Deref(snapshot.Status.BoundVolumeSnapshotContentName, "")
	}
	if content == "" {
		return "", errclass.Errorf(errclass.Transient, "VolumeSnapshot %s is not made yet", asked.name)
	}
	found, err := client.VolumeSnapshotContents().Get(ctx, content, metav1.GetOptions{})
	if err != nil {
		return "", describeMissing("VolumeSnapshotContent "+content, err)
	}
	owner, handle, ready := found.Spec.VolumeSnapshotRef, "", false
	if found.Status != nil {
		handle, ready = ptr.Deref(found.Status.SnapshotHandle, ""), ptr.Deref(found.Status.ReadyToUse, false)
	}
	switch {
	case owner.UID != snapshot.UID || owner.Name != snapshot.Name || owner.Namespace != snapshot.Namespace:
		return "", errclass.Errorf(errclass.Invalid, "VolumeSnapshotContent %s is another one's", content)
	case found.Spec.Driver != names.Driver:
		return "", errclass.Errorf(errclass.Invalid, "VolumeSnapshot %s is of the driver %s: ask that one", asked.name,
			found.Spec.Driver)
	case handle == "" || !ready:
		return "", errclass.Errorf(errclass.Transient, "VolumeSnapshot %s is not ready to use yet", asked.name)
	}
	return handle, nil
}

func describeMissing(what string, err error) error {
	if apierrors.IsNotFound(err) {
		return errclass.Errorf(errclass.NotFound, "there is no %s", what)
	}
	return fmt.Errorf("%w: get %s: %w", errclass.Transient, what, err)
}
