package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newLogsCommand(s *resource.Session, k kind) *cobra.Command {
	var options corev1.PodLogOptions
	c := &cobra.Command{
		Use: "logs NAME", Short: "Print the logs of the mover pod of " + article(k.noun),
		Long: `Print the logs of the mover pod of ` + article(k.noun) + `. The pod goes when the ` + k.noun + ` ends; why one failed
stays in its message.`,
		Example: `  varve data ` + k.noun + ` logs nightly-x7k2p -n velero --follow`,
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
			pods := &corev1.PodList{}
			if err := c.List(cmd.Context(), pods, podsOf(m)...); err != nil {
				return fmt.Errorf("list the mover pods of %s %s: %w", k.noun, args[0], err)
			}
			if len(pods.Items) == 0 {
				return failure.New(s.CommandHint("data "+k.noun+" describe "+args[0])+" shows its message", "%s %s has no mover pod: it is %s", k.noun, args[0], m.phase)
			}
			latest := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int {
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			})
			return copyLogs(cmd.Context(), cmd.OutOrStdout(), c, &latest, &options)
		},
	}
	c.Flags().BoolVarP(&options.Follow, "follow", "f", false, "print what is logged from now on, too")
	c.Flags().BoolVarP(&options.Previous, "previous", "p", false, "print the logs of the mover that ended before the one that runs")
	c.Flags().BoolVar(&options.Timestamps, "timestamps", false, "begin each line with its time")
	return c
}

func copyLogs(ctx context.Context, out io.Writer, c *cluster.Client, pod *corev1.Pod, options *corev1.PodLogOptions) (err error) {
	logs, err := c.Logs(ctx, pod.Namespace, pod.Name, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	if _, err := io.Copy(out, logs); err != nil && ctx.Err() == nil {
		return fmt.Errorf("read the logs of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
