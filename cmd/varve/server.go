package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/varvebackup/varve/internal/layout"
)

// server is what the controller and the handler have in common.
type server struct {
	kubeconfig, namespace, metrics, health, level string
}

func (s *server) addFlags(f *pflag.FlagSet, env environment) {
	namespace := env("POD_NAMESPACE")
	if namespace == "" {
		namespace = layout.Namespace
	}
	f.StringVar(&s.kubeconfig, "kubeconfig", env("KUBECONFIG"), "how to reach the API server; empty: as a pod")
	f.StringVar(&s.namespace, "namespace", namespace, "Varve's own namespace")
	f.StringVar(&s.metrics, "metrics-bind-address", ":8443", "where /metrics is served over TLS, to those who may get /metrics in the cluster; 0: nowhere")
	f.StringVar(&s.health, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served; 0: nowhere")
	f.StringVar(&s.level, "log-level", "info", "debug, info, warn or error")
}

// requestLimit limits the requests that a component sends to the API server. Negative numbers set no limit: the API
// server's priority and fairness does.
type requestLimit struct {
	perSecond float32
	burst     int
}

var (
	// A restart reconciles every object at once. With client-go's default of 5 requests a second, that would take
	// minutes.
	handlerLimit    = requestLimit{perSecond: 100, burst: 200}
	controllerLimit = requestLimit{perSecond: -1, burst: -1}
)

// restConfig returns how a component reaches the API server.
func (s *server) restConfig(component string, limit requestLimit) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	c.UserAgent = "varve-" + component
	c.QPS, c.Burst = limit.perSecond, limit.burst
	return c, nil
}

// parsePullPolicy reads the value of --image-pull-policy.
func parsePullPolicy(text string) (corev1.PullPolicy, error) {
	switch policy := corev1.PullPolicy(text); policy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		return policy, nil
	default:
		return "", fmt.Errorf("--image-pull-policy %s: use Always, IfNotPresent or Never", text)
	}
}

// newLogger writes one JSON object per line, for Varve's components and the libraries below them.
func (s *server) newLogger(w io.Writer) (logr.Logger, error) {
	lines, err := newLogHandler(s.level, w)
	if err != nil {
		return logr.Logger{}, err
	}
	l := logr.FromSlogHandler(lines)
	log.SetLogger(l)
	klog.SetLogger(l)
	return l, nil
}

// newLogHandler writes one JSON object per line.
func newLogHandler(name string, w io.Writer) (slog.Handler, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}), nil
}
