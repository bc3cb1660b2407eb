package cluster

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
)

// installDNS creates the Service kube-dns, whose only endpoint is the CoreDNS that runs on the first node. It does not
// change existing objects.
func installDNS(ctx context.Context, c kubernetes.Interface, plan netplan.Plan) error {
	meta := metav1.ObjectMeta{
		Namespace: metav1.NamespaceSystem, Name: "kube-dns",
		Labels: map[string]string{"k8s-app": "kube-dns", discoveryv1.LabelServiceName: "kube-dns"},
	}
	service := corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: plan.DNS().String()}}
	slice := discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{plan.Node(1).Addr().String()}}},
	}
	for name, protocol := range map[string]corev1.Protocol{"dns": corev1.ProtocolUDP, "dns-tcp": corev1.ProtocolTCP} {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: 53})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: new(int32(53))})
	}
	// Get comes first: for a Service that exists, Create would fail because its address is taken.
	_, err := c.CoreV1().Services(meta.Namespace).Get(ctx, meta.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.CoreV1().Services(meta.Namespace).Create(ctx, &service, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = c.DiscoveryV1().EndpointSlices(meta.Namespace).Create(ctx, &slice, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the Service kube-dns: %w", err)
	}
	return nil
}

// namesResolve asks the cluster's DNS, by its ClusterIP and from the host, for the API server's Service.
func (s *State) namesResolve(ctx context.Context, dir layout.Box) error {
	server := net.JoinHostPort(s.Plan.DNS().String(), "53")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
	what, log := "the DNS of the cluster at "+server, dir.Node(1).Log("coredns")
	return s.awaitOnNode(ctx, dir, 1, what, time.Minute, log, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		return err
	})
}
