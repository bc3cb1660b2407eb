package main

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/handler"
)

// handlerCommand is `varve handler`, a node's part.
func handlerCommand(env environment) *cobra.Command {
	var s server
	var o handler.Options
	c := &cobra.Command{
		Use:   "handler",
		Short: "Run a node's part: guests, mounts, checkpoints",
		Long: "Run a node's part of Varve: the guests of the node, mounts of utility volumes, checkpoints, and a " +
			"backup's\n" +
			"life on the node. deploy/ runs it.",
		Example: `  varve handler --kubeconfig ~/.kube/config --node-name node1`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Logger, err = s.newLogger(c.ErrOrStderr()); err != nil {
				return err
			}
			if o.Config, err = s.restConfig("handler", handlerLimit); err != nil {
				return err
			}
			o.Namespace, o.MetricsAddress, o.HealthAddress = s.namespace, s.metrics, s.health
			return handler.Run(c.Context(), o)
		},
	}
	s.addFlags(c.Flags(), env)
	c.Flags().StringVar(&o.NodeName, "node-name", env("NODE_NAME"), "the node that this runs on (required)")
	c.Flags().StringVar(&o.KubeletPodsDir, "kubelet-pods-dir", "", "the kubelet's directory of pods; empty: /var/lib/kubelet/pods")
	c.Flags().DurationVar(&o.StopWaitsForBackup, "stop-waits-for-backup", 0, "how long a stop waits for a running backup; 0: 10 minutes")
	return c
}
