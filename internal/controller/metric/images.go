package metric

import (
	"cmp"
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// Gauges of images, and of the stores as far as the controller hears of them. Each store reports its disks itself.
var (
	imageInfo = prometheus.NewDesc("varve_image_info",
		"1 for each BackingImage, with its source type, and status and reason of its condition Ready (Unknown and empty "+
			"before it has one).", []string{"image", "source_type", "ready", "reason"}, nil)
	imageCopies = prometheus.NewDesc("varve_image_copies",
		"Copies of the image on disks, by state: pending, in-progress, ready, failed or unknown.",
		[]string{"image", "state"}, nil)
	imageWanted = prometheus.NewDesc("varve_image_wanted_copies",
		"How many copies of the image there are to be at least: spec.minNumberOfCopies.", imageLabels, nil)
	imageAwaited = prometheus.NewDesc("varve_image_first_copy_awaited_since_timestamp_seconds",
		"When the image was created, in Unix time. Absent as soon as its first copy is ready.", imageLabels, nil)
	imageFailures = prometheus.NewDesc("varve_image_first_copy_failures",
		"How many attempts to make the image's first copy have failed.", imageLabels, nil)
	storeReporting = prometheus.NewDesc("varve_store_reporting",
		"1 for each Node of longhorn.io whose store reports, and 0 if it has not reported for three minutes.",
		[]string{"node"}, nil)
)

var imageLabels = []string{"image"}

// imageDescriptions describes what collectImages and collectStores report.
var imageDescriptions = []*prometheus.Desc{
	imageInfo, imageCopies, imageWanted, imageAwaited, imageFailures, storeReporting,
}

// copyStates are the states of copies. Each is reported, also if no copy is in it.
var copyStates = []longhornv1.BackingImageState{
	longhornv1.StatePending, longhornv1.StateInProgress, longhornv1.StateReady, longhornv1.StateFailed,
	longhornv1.StateUnknown,
}

// ServeImages makes the set report the images of a namespace. Without it none are reported, because the cluster may
// lack their kinds.
func (s *Set) ServeImages(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imagesIn = namespace
}

// imagesNamespace returns the namespace whose images are reported, or "".
func (s *Set) imagesNamespace() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.imagesIn
}

func (s *Set) collectImages(ctx context.Context, ch chan<- prometheus.Metric) {
	namespace := s.imagesNamespace()
	var list longhornv1.BackingImageList
	if namespace == "" || s.cached.List(ctx, &list, client.InNamespace(namespace)) != nil {
		return
	}
	for i := range list.Items {
		collectImage(ch, &list.Items[i])
	}
}

func collectImage(ch chan<- prometheus.Metric, image *longhornv1.BackingImage) {
	status, reason := "Unknown", ""
	if c := meta.FindStatusCondition(image.Status.Conditions, longhornv1.ConditionReady); c != nil {
		status, reason = string(c.Status), c.Reason
	}
	sendGauge(ch, imageInfo, 1, image.Name, string(image.Spec.SourceType), status, reason)
	counts := map[longhornv1.BackingImageState]int{}
	for _, c := range image.Status.DiskFileStatusMap {
		if c != nil {
			counts[c.State]++
		}
	}
	for _, state := range copyStates {
		sendGauge(ch, imageCopies, float64(counts[state]), image.Name, string(state))
	}
	sendGauge(ch, imageWanted, float64(cmp.Or(image.Spec.MinNumberOfCopies, 1)), image.Name)
	sendGauge(ch, imageFailures, float64(image.Status.FirstCopyAttempts), image.Name)
	if image.Status.V2FirstCopyStatus != longhornv1.StateReady {
		sendGauge(ch, imageAwaited, unixSeconds(image.CreationTimestamp.Time), image.Name)
	}
}

// collectStores reports which stores report. A store without a Node is on a machine that is gone for good.
func (s *Set) collectStores(ctx context.Context, ch chan<- prometheus.Metric) {
	namespace := s.imagesNamespace()
	var nodes longhornv1.NodeList
	var managers longhornv1.InstanceManagerList
	if namespace == "" || s.cached.List(ctx, &nodes, client.InNamespace(namespace)) != nil ||
		s.cached.List(ctx, &managers, client.InNamespace(namespace)) != nil {
		return
	}
	running := map[string]bool{}
	for i := range managers.Items {
		running[managers.Items[i].Name] = managers.Items[i].Status.CurrentState == longhornv1.ManagerRunning
	}
	for i := range nodes.Items {
		sendGauge(ch, storeReporting, oneIf(running[nodes.Items[i].Name]), nodes.Items[i].Name)
	}
}
