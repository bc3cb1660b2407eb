package cluster

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Logs opens the logs of a pod. The caller closes them.
func (c *Client) Logs(ctx context.Context, namespace, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
	clients, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	logs, err := clients.CoreV1().Pods(namespace).GetLogs(pod, options).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the logs of pod %s/%s: %w", namespace, pod, err)
	}
	return logs, nil
}
