package virtualmachineexport

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/tracking"
)

// gatherInput reads what decide looks at, and returns the issuer of the export's certificate.
func (r *reconciler) gatherInput(ctx context.Context, export *exportv1.VirtualMachineExport) (*input, *authority.Issuer, error) {
	in := &input{Now: r.Clock.Now(), Export: export.DeepCopy(), ConfigurationName: r.Configuration.String()}
	configuration, err := find(ctx, r.cached, r.Configuration.Namespace, r.Configuration.Name, &kubevirtv1.KubeVirt{})
	if err != nil {
		return nil, nil, err
	}
	in.GateOff = !tracking.GateEnabled(configuration, kubevirtv1.VMExport)
	if in.Source, err = r.findSource(ctx, export); err != nil {
		return nil, nil, err
	}
	if err := r.findChildren(ctx, in); err != nil {
		return nil, nil, err
	}
	issuer, err := r.authorities.Issuer(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("get the authorities of exports: %w", err)
	}
	in.Authorities = string(issuer.Authorities())
	if in.Proxy, err = r.proxy.Find(ctx, in.Authorities); err != nil {
		return nil, nil, fmt.Errorf("find the address of the export proxy: %w", err)
	}
	if in.Certificate != nil {
		c := authority.Certificate{Certificate: in.Certificate.Data[corev1.TLSCertKey], Key: in.Certificate.Data[corev1.TLSPrivateKeyKey]}
		// A certificate that cannot be used is due since the zero time.
		in.RenewCertificate, _ = issuer.RenewalTime(c, podspec.ServiceHosts(export.Namespace, export.Name))
	}
	in.Pods, in.Refusal = r.memory.recall(export)
	return in, issuer, nil
}

// findChildren reads what has the export's names from the API server.
func (r *reconciler) findChildren(ctx context.Context, in *input) (err error) {
	namespace, name := in.Export.Namespace, in.Export.Name
	if in.Service, err = find(ctx, r.live, namespace, podspec.Service(name), &corev1.Service{}); err != nil {
		return err
	}
	if in.Pod, err = find(ctx, r.live, namespace, podspec.Pod(name), &corev1.Pod{}); err != nil {
		return err
	}
	if in.Certificate, err = find(ctx, r.live, namespace, podspec.CertificateSecret(name), &corev1.Secret{}); err != nil {
		return err
	}
	if in.Source.machine() != "" {
		if in.Manifests, err = find(ctx, r.live, namespace, podspec.ManifestsSecret(name), &corev1.Secret{}); err != nil {
			return err
		}
	}
	token, _ := tokenSecretName(in.Export)
	in.Token, err = find(ctx, r.live, namespace, token, &corev1.Secret{})
	return err
}

// find reads an object into o. It returns nil if there is none.
func find[T client.Object](ctx context.Context, from client.Reader, namespace, name string, o T) (T, error) {
	return reconcile.Find(ctx, from, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// findSource reads what the export serves.
func (r *reconciler) findSource(ctx context.Context, export *exportv1.VirtualMachineExport) (sourceHandler, error) {
	switch source := export.Spec.Source; source.Kind {
	case exportv1.SourceBackup:
		return r.findBackup(ctx, export.Namespace, source.Name)
	case exportv1.SourceMachine:
		return r.findMachine(ctx, export.Namespace, source.Name)
	default: // the schema admits one more kind
		s := &volumeSource{}
		var err error
		s.claims, err = r.findClaims(ctx, export.Namespace, []string{source.Name})
		return s, err
	}
}

func (r *reconciler) findMachine(ctx context.Context, namespace, name string) (sourceHandler, error) {
	s := &volumeSource{vmName: name}
	var err error
	if s.vm, err = find(ctx, r.cached, namespace, name, &kubevirtv1.VirtualMachine{}); err != nil || s.vm == nil {
		return s, err
	}
	if s.instance, err = find(ctx, r.cached, namespace, name, &kubevirtv1.VirtualMachineInstance{}); err != nil {
		return nil, err
	}
	s.claims, err = r.findClaims(ctx, namespace, claimsOfMachine(s.vm))
	return s, err
}

// findClaims reads claims, and from the API server who can write to them: the cache has only the pods that Varve made.
func (r *reconciler) findClaims(ctx context.Context, namespace string, names []string) ([]claim, error) {
	pods := &corev1.PodList{}
	if len(names) > 0 {
		if err := r.live.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
		}
	}
	claims := make([]claim, 0, len(names))
	for _, name := range names {
		object, err := find(ctx, r.cached, namespace, name, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim{name: name, object: object, writers: writersOf(name, pods.Items)})
	}
	return claims, nil
}

func (r *reconciler) findBackup(ctx context.Context, namespace, name string) (sourceHandler, error) {
	s := &backupSource{name: name}
	var err error
	if s.backup, err = find(ctx, r.cached, namespace, name, &backupv1.VirtualMachineBackup{}); err != nil {
		return nil, err
	}
	if s.backup == nil {
		// The cache does not have backups that have ended.
		if s.backup, err = find(ctx, r.live, namespace, name, &backupv1.VirtualMachineBackup{}); err != nil || s.backup == nil {
			return s, err
		}
	}
	s.pull = s.backup.Spec.IsPull()
	if !s.pull || s.backup.Status.Phase.Final() {
		return s, nil
	}
	if s.offer = r.OfferOf(s.backup); s.offer == nil {
		return s, nil
	}
	secret, err := find(ctx, r.live, namespace, s.offer.TunnelSecret, &corev1.Secret{})
	s.tunnelSecretExists = secret != nil
	return s, err
}
