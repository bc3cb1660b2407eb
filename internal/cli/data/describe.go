package data

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

func newDescribeCommand(s *resource.Session, k kind) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show " + article(k.noun) + " with its progress and its mover pod",
		Long: `Show ` + article(k.noun) + `: the volume, what it waits for or why it failed, how much was moved, the mover
pod and the events.`,
		Example: `  varve data ` + k.noun + ` describe nightly-x7k2p -n velero`,
		Args:    cmdline.ExactArgs(1, "the name of "+article(k.noun)), ValidArgsFunction: s.CompleteArgs(k.newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			m, err := k.get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, m.object)
			}
			pods := &corev1.PodList{}
			if err := c.List(cmd.Context(), pods, podsOf(m)...); err != nil {
				return fmt.Errorf("list the mover pods of %s %s: %w", k.noun, args[0], err)
			}
			events, err := resource.ReadEvents(cmd.Context(), c, m.object.GetNamespace(), m.object.GetUID())
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeMovement(p, m, pods.Items)
			resource.WriteEvents(p, events)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// article returns a noun with its article.
func article(noun string) string {
	if noun == uploads.noun {
		return "an " + noun
	}
	return "a " + noun
}

// podsOf selects the mover pods of an object.
func podsOf(m *movement) []client.ListOption {
	return []client.ListOption{client.InNamespace(layout.Namespace), client.MatchingLabels{datamove.LabelObject: string(m.object.GetUID())}}
}

// whyFull says why everything was read, or "".
func whyFull(o *velerov2.DataUpload) string {
	reason, detail := o.Status.DataMoverResult[datamove.ResultFullReason], o.Status.DataMoverResult[datamove.ResultFullDetail]
	if reason == "" || detail == "" {
		return reason + detail
	}
	return reason + ": " + detail
}

func writeMovement(p *output.Page, m *movement, pods []corev1.Pod) {
	volume := "Volume"
	var incremental, fullReason string
	switch o := m.object.(type) {
	case *velerov2.DataUpload:
		volume = "From claim"
		if o.Status.IncrementalBytes > 0 {
			incremental = human.Bytes(o.Status.IncrementalBytes)
		}
		fullReason = whyFull(o)
	case *velerov2.DataDownload:
		volume = "To claim"
	}
	created := m.object.GetCreationTimestamp()
	fields := []string{
		"Name", m.object.GetName(),
		"Namespace", m.object.GetNamespace(),
		"Created", p.Moment(created.Time),
		"Labels", output.FormatLabels(m.object.GetLabels()),
		volume, m.volume,
	}
	fields = append(fields, describeMachineDisk(m.disk)...)
	p.Fields(append(fields,
		"Location", m.location,
		"Data mover", m.dataMover(),
		"Phase", string(m.phase),
		"Message", m.message,
		"Cancel asked", map[bool]string{true: "yes"}[m.canceled],
		"Moved", m.amount(),
		"New or changed", incremental,
		"Full because", fullReason,
		"Snapshot ID", m.snapshotID,
		"Node", m.node,
		"Started", p.Timestamp(m.started),
		"Completed", p.Timestamp(m.completed),
		"Took", m.took(p.Now),
	)...)
	t := &output.Table{Header: []string{"POD", "NODE", "PHASE", "RESTARTS", "AGE"}}
	for i := range pods {
		pod := &pods[i]
		t.Add(pod.Namespace+"/"+pod.Name, pod.Spec.NodeName, string(pod.Status.Phase), restarts(pod), p.Age(pod.CreationTimestamp.Time))
	}
	p.Section("Mover pod", t, "none")
}

// describeMachineDisk returns fields that say which disk of a running machine is moved; none for nil.
func describeMachineDisk(d *datamove.MachineDisk) []string {
	if d == nil {
		return nil
	}
	return []string{
		"Virtual machine", d.Machine,
		"Disk", d.Volume,
		"Tracker", d.Tracker,
		"Scratch claim", d.ScratchClaim,
		"Group", d.Group + ", of " + human.Count(d.Disks, "disk"),
	}
}

func restarts(pod *corev1.Pod) string {
	n := int32(0)
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return fmt.Sprint(n)
}
