package machinegroup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// soon is when a pod is looked at again that is about to be made, or that has no address yet. Mover pods are not
	// watched.
	soon = time.Second
	// lookEvery is how often Secrets and addresses are looked at while the pods live.
	lookEvery = 30 * time.Second
)

// serve gives the mover pods of a group their Secrets, and writes where they are into the backup's status.
func (r *reconciler) serve(ctx context.Context, g *group) (ctrl.Result, error) {
	token, err := r.readToken(ctx, g.backup)
	if err != nil || token == nil {
		return ctrl.Result{RequeueAfter: soon}, err
	}
	issuer, err := r.authorities.Issuer(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the authorities: %w", err)
	}
	var tunnels []backupv1.VolumeTunnel
	result := ctrl.Result{RequeueAfter: lookEvery}
	var missing *definitionError
	for i := range g.members {
		m := &g.members[i]
		if !moversecret.IsMoving(m.upload) {
			continue
		}
		tunnel, err := r.equip(ctx, m, token, issuer)
		switch {
		case errors.As(err, &missing): // An event says so, and lookEvery is soon enough.
		case err != nil:
			return ctrl.Result{}, err
		case tunnel == nil:
			result.RequeueAfter = soon
		case slices.ContainsFunc(tunnels, func(t backupv1.VolumeTunnel) bool { return t.Volume == tunnel.Volume }):
			// The API has one place for each volume. That of the older DataUpload counts: it may be reading.
			r.events.Eventf(m.upload, nil, corev1.EventTypeWarning, "GroupDiffers", "BackUp", "another DataUpload of the group reads the volume %s", m.disk.Volume)
		default:
			tunnels = append(tunnels, *tunnel)
		}
	}
	return result, r.writeTunnels(ctx, g.backup, tunnels)
}

// readToken returns the token of the backup's tunnel, or nil while its Secret is not there.
func (r *reconciler) readToken(ctx context.Context, b *backupv1.VirtualMachineBackup) ([]byte, error) {
	if b.Status.PullTunnelSecret == "" {
		return nil, nil
	}
	secret, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: b.Status.PullTunnelSecret}, &corev1.Secret{})
	if err != nil || secret == nil || !metav1.IsControlledBy(secret, b) {
		return nil, err
	}
	return secret.Data[podspec.TokenKey], nil
}

// equip gives the mover pod of a DataUpload its Secret, and returns where the launcher connects to; nil as long as that is not known.
func (r *reconciler) equip(ctx context.Context, m *member, token []byte, issuer *authority.Issuer) (*backupv1.VolumeTunnel, error) {
	pod, err := r.secrets.FindPod(ctx, m.upload)
	if err != nil || pod == nil {
		return nil, err
	}
	have, err := r.secrets.Find(ctx, pod)
	if err != nil {
		return nil, err
	}
	host := pod.Name + "." + pod.Namespace + ".pod"
	certificate, err := r.certificateFor(host, have, issuer)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{
		datamove.TunnelTokenKey: token, datamove.TunnelCertificateKey: certificate.Certificate, datamove.TunnelPrivateKey: certificate.Key, datamove.EndpointEndedKey: {},
	}
	if m.disk.Definition != "" {
		definition, err := r.definitionFor(ctx, m, pod, have)
		if err != nil {
			return nil, err
		}
		data[datamove.DefinitionKey] = definition
	}
	kept, err := r.secrets.Keep(ctx, m.upload, pod, have, data)
	if err != nil || !kept || pod.Status.Phase != corev1.PodRunning || net.ParseIP(pod.Status.PodIP) == nil {
		return nil, err
	}
	return &backupv1.VolumeTunnel{Volume: m.disk.Volume, PullTunnel: backupv1.PullTunnel{
		Address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(datamove.TunnelPort)), ServerName: host, Authorities: string(issuer.Authorities()),
	}}, nil
}

// certificateFor returns the certificate that the pod has, or another one if that cannot be used, or not for long.
func (r *reconciler) certificateFor(host string, have *corev1.Secret, issuer *authority.Issuer) (authority.Certificate, error) {
	if have != nil {
		c := authority.Certificate{Certificate: have.Data[datamove.TunnelCertificateKey], Key: have.Data[datamove.TunnelPrivateKey]}
		if renewal, err := issuer.RenewalTime(c, []string{host}); err == nil && r.Clock.Now().Before(renewal) {
			return c, nil
		}
	}
	return issuer.Issue([]string{host})
}

// writeTunnels writes where the launcher connects to. Only this controller writes the field while the backup serves.
func (r *reconciler) writeTunnels(ctx context.Context, b *backupv1.VirtualMachineBackup, tunnels []backupv1.VolumeTunnel) error {
	if equality.Semantic.DeepEqual(b.Status.PullTunnels, tunnels) {
		return nil
	}
	changed := b.DeepCopy()
	changed.Status.PullTunnels = tunnels
	if err := r.cached.Status().Patch(ctx, changed, reconcile.MergeFrom(b)); err != nil {
		return fmt.Errorf("tell where the mover pods are: %w", err)
	}
	return nil
}
