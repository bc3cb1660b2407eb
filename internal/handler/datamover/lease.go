package datamover

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
)

const (
	// leaseTime is how long a handler that dies keeps others from counting.
	leaseTime = 15 * time.Second
	// takeWithinLease is how much of it may have passed when an object is taken.
	takeWithinLease = leaseTime / 2
	// leaseRetry is when a handler that did not get the Lease tries again.
	leaseRetry = 250 * time.Millisecond
)

// clusterLimit is the Lease that a handler holds while it counts what runs in the whole cluster and takes an object. Only the Taker
// uses it, one pass at a time.
//
// Another's hold ends when its Lease was not changed for leaseTime by this handler's clock, so that clocks need not agree. A holder that
// is stopped between its last look at the clock and its write can be late; the limit is then exceeded by one.
type clusterLimit struct {
	lease *coordinationv1.Lease
	since time.Time
	// seen is the version of another's hold, and seenAt when this handler saw it first.
	seen   string
	seenAt time.Time
}

// acquire reports whether this handler holds the Lease, or when to try again.
func (l *clusterLimit) acquire(ctx context.Context, m *Mover) (held bool, wait time.Duration, err error) {
	now := m.Clock.Now()
	lease := &coordinationv1.Lease{}
	key := types.NamespacedName{Namespace: m.Namespace, Name: datamove.LimitLease}
	err = m.Live.Get(ctx, key, lease)
	created := apierrors.IsNotFound(err)
	if err != nil && !created {
		return false, 0, fmt.Errorf("get Lease %s: %w", key, err)
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); !created && holder != "" && holder != m.NodeName {
		if version := string(lease.UID) + "/" + lease.ResourceVersion; version != l.seen {
			l.seen, l.seenAt = version, now
		}
		if now.Sub(l.seenAt) < leaseTime {
			return false, leaseRetry, nil
		}
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &m.NodeName, ptr.To(int32(leaseTime.Seconds()))
	lease.Spec.AcquireTime, lease.Spec.RenewTime = &metav1.MicroTime{Time: now}, &metav1.MicroTime{Time: now}
	if created {
		lease.ObjectMeta = metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
		err = m.Writer.Create(ctx, lease)
	} else {
		err = m.Writer.Update(ctx, lease)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, leaseRetry, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("take Lease %s: %w", key, err)
	}
	l.lease, l.since = lease, now
	return true, 0, nil
}

// isHeld says that nobody else can hold the Lease by now.
func (l *clusterLimit) isHeld(now time.Time) bool {
	return l.lease != nil && now.Sub(l.since) < takeWithinLease
}

// release lets the next handler count.
func (l *clusterLimit) release(ctx context.Context, m *Mover) error {
	lease := l.lease
	l.lease = nil
	lease.Spec.HolderIdentity = nil
	if err := m.Writer.Update(ctx, lease); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("release Lease %s: %w", client.ObjectKeyFromObject(lease), err)
	}
	return nil
}
