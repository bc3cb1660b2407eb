package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/errclass"
)

// Forwarder connects to a port of a pod through the API server, as kubectl port-forward does. When the pod is replaced by
// another one of the same name, the next connection goes to that one. It is safe for concurrent use. Close it.
type Forwarder struct {
	client         *Client
	namespace, pod string
	port           int

	mu sync.Mutex
	// local is the address that leads to the pod, while ended is open.
	local string
	ended chan struct{}
	stop  chan struct{}
}

// Forward returns a forwarder to a port of a pod. It sends nothing yet.
func (c *Client) Forward(namespace, pod string, port int) *Forwarder {
	return &Forwarder{client: c, namespace: namespace, pod: pod, port: port}
}

// Dial connects to the pod. An error is Transient unless the API server refuses to forward.
func (f *Forwarder) Dial(ctx context.Context) (net.Conn, error) {
	local, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", local)
}

// Close ends the forwarding.
func (f *Forwarder) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		close(f.stop)
		<-f.ended
		f.ended = nil
	}
}

// connect returns the local address that leads to the pod.
func (f *Forwarder) connect(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		select {
		case <-f.ended: // the pod or the connection has gone
			f.ended = nil
		default:
			return f.local, nil
		}
	}
	if err := f.checkPod(ctx); err != nil {
		return "", err
	}
	return f.local, f.start(ctx)
}

// checkPod tells a pod that does not run yet, which is waited for, from a forwarding that fails.
func (f *Forwarder) checkPod(ctx context.Context) error {
	var pod corev1.Pod
	err := f.client.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: f.pod}, &pod)
	switch {
	case Classify(err) == NotFound && err != nil:
		return errclass.Errorf(errclass.Transient, "pod %s does not exist now", f.pod)
	case err != nil:
		return f.explain(err)
	case pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning:
		return errclass.Errorf(errclass.Transient, "pod %s does not run now: it is %s", f.pod, pod.Status.Phase)
	}
	return nil
}

func (f *Forwarder) explain(err error) error {
	if class := Classify(err).ErrorClass(); class != nil {
		return errclass.Errorf(class, "forward a port to pod %s: %w", f.pod, err)
	}
	return fmt.Errorf("forward a port to pod %s: %w", f.pod, err)
}

func (f *Forwarder) start(ctx context.Context) error {
	ready, stop, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	forwarder, err := f.newPortForwarder(stop, ready)
	if err != nil {
		return f.explain(err)
	}
	var failure error
	go func() {
		defer close(ended)
		failure = forwarder.ForwardPorts()
	}()
	select {
	case <-ready:
	case <-ended:
		return f.explain(errors.Join(failure, errors.New("the API server ended it")))
	case <-ctx.Done():
		close(stop)
		<-ended
		return context.Cause(ctx)
	}
	ports, err := forwarder.GetPorts()
	if err != nil || len(ports) != 1 {
		close(stop)
		<-ended
		return f.explain(errors.Join(err, errors.New("no local port")))
	}
	f.local, f.stop, f.ended = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), stop, ended
	return nil
}

// newPortForwarder tries WebSockets, and SPDY with servers and proxies that do not know them.
func (f *Forwarder) newPortForwarder(stop <-chan struct{}, ready chan struct{}) (*portforward.PortForwarder, error) {
	config := rest.CopyConfig(f.client.config)
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	address := api.Post().Resource("pods").Namespace(f.namespace).Name(f.pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	over, err := portforward.NewSPDYOverWebsocketDialer(address, config)
	if err != nil {
		return nil, err
	}
	dialer := portforward.NewFallbackDialer(over, spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address), func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	// Port 0: any that is free. Only this host can reach it, and nobody reads anything there without the token.
	return portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(f.port)}, stop, ready, io.Discard, io.Discard)
}
