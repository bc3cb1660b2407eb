package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// census counts objects by state from the manager's cache on each scrape, so no counter can drift.
type census struct {
	reader         client.Reader
	phases, states *prometheus.Desc
}

func newCensus(reader client.Reader) *census {
	return &census{
		reader: reader,
		phases: prometheus.NewDesc("varve_vmi_phase_count", "Instances by namespace and phase.", []string{"namespace", "phase"}, nil),
		states: prometheus.NewDesc("varve_vm_changed_block_tracking_count", "Machines by namespace and state of changed block tracking; None: it was never on.", []string{"namespace", "state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *census) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.phases
	ch <- c.states
}

// Collect implements prometheus.Collector. While the cache is not filled, the metric is absent: a zero would be
// wrong, and an error would hide every other metric.
func (c *census) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	instances := &kubevirtv1.VirtualMachineInstanceList{}
	if err := c.reader.List(ctx, instances); err != nil {
		return
	}
	byPhase := map[[2]string]float64{}
	for i := range instances.Items {
		byPhase[[2]string{instances.Items[i].Namespace, phaseOrPending(&instances.Items[i])}]++
	}
	sendCounts(ch, c.phases, byPhase)

	machines := &kubevirtv1.VirtualMachineList{}
	if err := c.reader.List(ctx, machines); err != nil {
		return
	}
	byState := map[[2]string]float64{}
	for i := range machines.Items {
		byState[[2]string{machines.Items[i].Namespace, trackingState(&machines.Items[i])}]++
	}
	sendCounts(ch, c.states, byState)
}

func sendCounts(ch chan<- prometheus.Metric, desc *prometheus.Desc, counts map[[2]string]float64) {
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, k[0], k[1])
	}
}

func phaseOrPending(instance *kubevirtv1.VirtualMachineInstance) string {
	if instance.Status.Phase == "" {
		return string(kubevirtv1.PhasePending)
	}
	return string(instance.Status.Phase)
}

func trackingState(vm *kubevirtv1.VirtualMachine) string {
	if vm.Status.ChangedBlockTracking == nil || vm.Status.ChangedBlockTracking.State == "" {
		return "None"
	}
	return string(vm.Status.ChangedBlockTracking.State)
}
