package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// upgradeTimeout is how long the API server may take to reach a pod, and streamTimeout how long to make a connection to its port.
	upgradeTimeout = 45 * time.Second
	streamTimeout  = 30 * time.Second
)

// Forwarder connects to a port of a pod through the API server, as kubectl port-forward does, but without a port of this machine, which its
// other users could reach. When the pod is replaced by another one of the same name, the next connection goes to that one. It is safe for
// concurrent use. Close it.
type Forwarder struct {
	client         *Client
	namespace, pod string
	port           int
	// closed ends everything.
	closed context.Context //nolint:containedctx // of the forwarder
	end    context.CancelFunc

	// lock is for current. It is a channel because waiting for it must end with a context.
	lock    chan struct{}
	current *forwarding
	moved   atomic.Int64
}

// Forward returns a forwarder to a port of a pod. It sends nothing yet.
func (c *Client) Forward(namespace, pod string, port int) *Forwarder {
	f := &Forwarder{client: c, namespace: namespace, pod: pod, port: port, lock: make(chan struct{}, 1)}
	f.closed, f.end = context.WithCancel(context.Background())
	return f
}

// Dial connects to the pod. An error is Transient unless the API server refuses to forward.
func (f *Forwarder) Dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.closed, func() { cancel(net.ErrClosed) })()
	current, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	within, stop := context.WithTimeoutCause(ctx, streamTimeout, errclass.Errorf(errclass.Transient, "pod %s is not reached in %s", f.pod, streamTimeout))
	defer stop()
	conn, err := current.dial(within, f.port)
	if err != nil && errclass.Of(err) == errclass.None && ctx.Err() == nil {
		err = errclass.Errorf(errclass.Transient, "connect to pod %s: %w", f.pod, err)
	}
	return conn, err
}

// Close ends the forwarding, and all connections.
func (f *Forwarder) Close() {
	f.end()
	f.Drop()
}

// Drop ends all connections. The next one asks the API server again: the way to it may be another one by now, and then the old one is silent
// for good.
func (f *Forwarder) Drop() {
	f.lock <- struct{}{}
	defer func() { <-f.lock }()
	if f.current != nil {
		f.current.end()
		f.current = nil
	}
}

// Moved returns how many bytes have come from the pod, or were sent in large pieces. A small piece is sent when the system has it, even if the
// way is broken.
func (f *Forwarder) Moved() int64 { return f.moved.Load() }

// connect returns a forwarding that has not ended.
func (f *Forwarder) connect(ctx context.Context) (*forwarding, error) {
	select {
	case f.lock <- struct{}{}:
		defer func() { <-f.lock }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if f.closed.Err() != nil {
		return nil, net.ErrClosed
	}
	if f.current != nil && f.current.ended.Err() == nil {
		return f.current, nil
	}
	f.current = nil
	if err := f.checkPod(ctx); err != nil {
		return nil, err
	}
	conn, err := f.upgrade(ctx)
	if err != nil {
		return nil, err
	}
	f.current = newForwarding(conn, &f.moved)
	return f.current, nil
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

// upgrade asks the API server to forward.
func (f *Forwarder) upgrade(ctx context.Context) (httpstream.Connection, error) {
	dialer, err := f.newDialer()
	if err != nil {
		return nil, f.explain(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, upgradeTimeout, errclass.Errorf(errclass.Transient, "forward a port to pod %s: no answer in %s", f.pod, upgradeTimeout))
	defer cancel()
	return await(ctx, func() (httpstream.Connection, error) {
		conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err == nil && protocol != portforward.PortForwardProtocolV1Name {
			err = errors.Join(fmt.Errorf("the API server speaks %q", protocol), conn.Close())
		}
		if err != nil {
			return nil, f.explain(err)
		}
		return conn, nil
	}, func(conn httpstream.Connection) { _ = conn.Close() })
}

// await calls what heeds no context. It returns when ctx ends at the latest; what comes later goes to drop.
func await[T any](ctx context.Context, call func() (T, error), drop func(T)) (value T, err error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		value, err := call()
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answered; a.err == nil {
				drop(a.value)
			}
		}()
		return value, context.Cause(ctx)
	}
}

// newDialer tries WebSockets, and SPDY with servers and proxies that do not know them, and with users who may not forward that way.
func (f *Forwarder) newDialer() (httpstream.Dialer, error) {
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
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(address, config)
	if err != nil {
		return nil, err
	}
	return &eitherDialer{webSocket, spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)}, nil
}

// eitherDialer dials in one way, or if that is not possible in another one.
type eitherDialer struct{ first, second httpstream.Dialer }

func (d *eitherDialer) Dial(protocols ...string) (httpstream.Connection, string, error) {
	conn, protocol, first := d.first.Dial(protocols...)
	var refusal *httpstream.UpgradeFailureError
	if !errors.As(first, &refusal) && !httpstream.IsHTTPSProxyError(first) {
		return conn, protocol, first
	}
	conn, protocol, err := d.second.Dial(protocols...)
	if err != nil && refusal != nil && apierrors.IsForbidden(refusal.Cause) {
		err = refusal.Cause // The second way says it in words alone.
	}
	return conn, protocol, err
}
