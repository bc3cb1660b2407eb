package lab

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/layout"
)

// maxEventBytes bounds what Explain logs of one event.
const maxEventBytes = 600

// Explain logs what a person would look at first in a namespace after a failure: its pods, the ends of the launchers'
// logs, and its events. It leaves out the ordinary events of pods and claims, which would hide what failed.
func (l *Lab) Explain(ctx context.Context, namespace string, logf func(format string, args ...any)) {
	var pods corev1.PodList
	_ = l.List(ctx, &pods, client.InNamespace(namespace))
	for _, p := range pods.Items {
		logf("pod %s/%s: %s %+v", p.Namespace, p.Name, p.Status.Phase, p.Status.ContainerStatuses)
		if p.Labels[layout.LabelApp] == "virt-launcher" {
			options := &corev1.PodLogOptions{Container: "compute", TailLines: ptr.To[int64](40)}
			data, _ := l.Clientset.CoreV1().Pods(namespace).GetLogs(p.Name, options).DoRaw(ctx)
			logf("log of %s:\n%s", p.Name, data)
		}
	}
	var events corev1.EventList
	_ = l.List(ctx, &events, client.InNamespace(namespace))
	seen := map[string]bool{}
	for _, e := range events.Items {
		o := e.InvolvedObject
		text := fmt.Sprintf("event %s/%s %s: %s", o.Kind, o.Name, e.Reason, e.Message)
		ordinary := e.Type == corev1.EventTypeNormal && (o.Kind == "Pod" || o.Kind == "PersistentVolumeClaim")
		if seen[text] || ordinary {
			continue
		}
		seen[text] = true
		logf("%s", text[:min(len(text), maxEventBytes)])
	}
}
