package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/varvebackup/varve/box/internal/csi"
	"github.com/varvebackup/varve/box/internal/layout"
)

// adminConfig returns how to reach the API server with administrator rights.
func adminConfig(dir layout.Box) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the box's kubeconfig: %w", err)
	}
	cfg.Timeout = 10 * time.Second // for one request
	cfg.QPS, cfg.Burst = 100, 100
	return cfg, nil
}

// adminClient returns a client with administrator rights.
func adminClient(dir layout.Box) (*kubernetes.Clientset, error) {
	cfg, err := adminConfig(dir)
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for the box: %w", err)
	}
	return c, nil
}

// waitHealthy waits for the box to work, layer by layer from the bottom, and creates the box's objects in the cluster.
func (s *State) waitHealthy(ctx context.Context, dir layout.Box, p *Progress) error {
	c, err := adminClient(dir)
	if err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := s.awaitSupervisor(ctx, dir, i+1); err != nil {
			return err
		}
	}
	for i := range s.Nodes {
		if err := s.containerdAnswers(ctx, dir, i+1, p); err != nil {
			return err
		}
		if err := s.ensureImages(ctx, dir, i+1, p); err != nil {
			return err
		}
	}
	if err := s.apiReady(ctx, dir, c); err != nil {
		return err
	}
	if err := s.installStorage(ctx, dir, c); err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := s.nodeReady(ctx, dir, c, i+1); err != nil {
			return err
		}
	}
	if err := s.serviceAnswers(ctx, dir); err != nil {
		return err
	}
	if err := installDNS(ctx, c, s.Plan); err != nil {
		return err
	}
	return s.namesResolve(ctx, dir)
}

// errNodeDied says that a node's init ended during a wait for something on the node.
var errNodeDied = errors.New("the node's init has ended")

// awaitOnNode calls awaitCheck for something on node i. It gives up when the node dies.
func (s *State) awaitOnNode(
	ctx context.Context, dir layout.Box, i int, what string, limit time.Duration, log string, check func(context.Context) error,
) error {
	err := awaitCheck(ctx, what, limit, log, func(ctx context.Context) error {
		if !s.Nodes[i-1].Init.Alive() {
			return giveUpError{errNodeDied}
		}
		return check(ctx)
	})
	if errors.Is(err, errNodeDied) {
		return fmt.Errorf("%w%s", err, logTail(dir.Node(i).Log("init")))
	}
	return err
}

// awaitSupervisor waits until the node's init has started its services.
func (s *State) awaitSupervisor(ctx context.Context, dir layout.Box, i int) error {
	l := dir.Node(i)
	return s.awaitOnNode(ctx, dir, i, "the init of "+l.Name, time.Minute, l.Log("init"), func(context.Context) error {
		_, err := serviceStatus(l)
		return err
	})
}

func (s *State) containerdAnswers(ctx context.Context, dir layout.Box, i int, p *Progress) error {
	l := dir.Node(i)
	look := func(ctx context.Context) error {
		if svc, err := serviceStatus(l); err == nil && isCrashing(svc["containerd"]) {
			return giveUpError{errors.New("it dies at each start")}
		}
		err := s.withRuntime(i, func(r runtime) error { return r.checkVersion(ctx) })
		if status.Code(err) == codes.Unimplemented { // it serves without its CRI plugin, which could not read the store
			return giveUpError{err}
		}
		return err
	}
	err := s.awaitOnNode(ctx, dir, i, "containerd of "+l.Name, time.Minute, l.Log("containerd"), look)
	if giveUp := (giveUpError{}); !errors.As(err, &giveUp) || errors.Is(err, errNodeDied) {
		return err
	}
	p.Say("%v", err)
	p.Say("%s gets a fresh containerd; its pods start again", l.Name)
	if err := s.stopNode(ctx, dir, i); err != nil {
		return err
	}
	if err := forgetContainerd(l); err != nil {
		return err
	}
	if err := s.startNode(ctx, dir, i); err != nil {
		return err
	}
	if err := s.awaitSupervisor(ctx, dir, i); err != nil {
		return err
	}
	return s.awaitOnNode(ctx, dir, i, "the fresh containerd of "+l.Name, time.Minute, l.Log("containerd"), look)
}

func (s *State) apiReady(ctx context.Context, dir layout.Box, c kubernetes.Interface) error {
	l := dir.Node(1)
	return s.awaitOnNode(ctx, dir, 1, "the API server", 3*time.Minute, l.Log("kube-apiserver"), func(ctx context.Context) error {
		if svc, err := serviceStatus(l); err == nil && isCrashing(svc["etcd"]) {
			return giveUpError{fmt.Errorf("%w%s", errEtcdDamaged, logTail(l.Log("etcd")))}
		}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err := c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

// nodeReady waits until Kubernetes reports the node as ready, based on a heartbeat from the kubelet that runs now,
// and until the node can take volumes.
func (s *State) nodeReady(ctx context.Context, dir layout.Box, c kubernetes.Interface, i int) error {
	l, started := dir.Node(i), s.Nodes[i-1].Started.Truncate(time.Second) // the API's times are in whole seconds
	err := s.awaitOnNode(ctx, dir, i, l.Name+" to be Ready", 3*time.Minute, l.Log("kubelet"), func(ctx context.Context) error {
		n, err := c.CoreV1().Nodes().Get(ctx, l.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if at < 0 {
			return errors.New("it reports no Ready condition")
		}
		ready := n.Status.Conditions[at]
		if ready.LastHeartbeatTime.Time.Before(started) {
			return errors.New("its kubelet has not reported since it was started")
		}
		if ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("it is not ready: %s: %s", ready.Reason, ready.Message)
		}
		_, err = c.CoreV1().RESTClient().Get().Resource("nodes").Name(l.Name).SubResource("proxy").Suffix("healthz").DoRaw(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return s.awaitOnNode(ctx, dir, i, "the volumes of "+l.Name, 2*time.Minute, l.Log("csi"), func(ctx context.Context) error {
		svc, err := serviceStatus(l)
		if err != nil {
			return err
		}
		for _, name := range storageServices(i) {
			if svc[name].PID == 0 {
				return fmt.Errorf("the service %s does not run", name)
			}
		}
		return csi.Registered(ctx, c, l.Name)
	})
}

// serviceAnswers connects to the API server by its ClusterIP from the host, which tests bridge, route, kube-proxy and API server.
func (s *State) serviceAnswers(ctx context.Context, dir layout.Box) error {
	l := dir.Node(1)
	target := net.JoinHostPort(s.Plan.APIService().String(), "443")
	return s.awaitOnNode(ctx, dir, 1, "the Service kubernetes at "+target, 60*time.Second, l.Log("kube-proxy"), func(ctx context.Context) error {
		d := net.Dialer{Timeout: 2 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", target)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
