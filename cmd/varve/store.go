package main

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/store"
)

// storeCommand is `varve store`, a node's disks for images and volumes.
func storeCommand(env environment) *cobra.Command {
	var s server
	var o store.Options
	var scrubRate int
	c := &cobra.Command{
		Use:   "store",
		Short: "Run a node's disks for images and volumes, and the CSI driver",
		Long: "Run a node's part of images and volumes: its disks, the copies of images on them, and the CSI driver\n" +
			"store.varvebackup.io. deploy/ runs it.",
		Example: `  varve store --kubeconfig ~/.kube/config --node-name node1 --pod-ip 10.0.0.7 --tls-dir /etc/varve-store-tls`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Logger, err = s.newLogger(c.ErrOrStderr()); err != nil {
				return err
			}
			if o.Config, err = s.restConfig("store", handlerLimit); err != nil {
				return err
			}
			if scrubRate < 0 || o.ScrubInterval < 0 {
				return failure.Usage("--scrub-rate %d and --scrub-interval %s: give 0 or more", scrubRate, o.ScrubInterval)
			}
			o.ScrubBytesPerSecond = int64(scrubRate) << 20
			o.Namespace, o.MetricsAddress, o.HealthAddress = s.namespace, s.metrics, s.health
			return store.Run(c.Context(), o)
		},
	}
	s.addFlags(c.Flags(), env)
	c.Flags().StringVar(&o.Node, "node-name", env("NODE_NAME"), "the node that this runs on (required)")
	c.Flags().StringVar(&o.PodIP, "pod-ip", env("POD_IP"), "the address at which other stores read images (required)")
	c.Flags().StringVar(&o.TLSDir, "tls-dir", "", "the directory with tls.crt, tls.key and ca.crt of the stores (required)")
	c.Flags().StringVar(&o.HostRoot, "host-root", "", "where this process sees the node's root directory; empty: /")
	c.Flags().StringVar(&o.DefaultDisk, "default-disk", store.DefaultDisk, "the node's directory that becomes its first disk; empty: none")
	c.Flags().StringVar(&o.KubeletDir, "kubelet-dir", "", "the kubelet's directory; empty: /var/lib/kubelet")
	c.Flags().IntVar(&scrubRate, "scrub-rate", store.DefaultScrubBytesPerSecond>>20,
		"how many MiB of the images are read a second to find damage; 0: none")
	c.Flags().DurationVar(&o.ScrubInterval, "scrub-interval", store.DefaultScrubInterval,
		"how often each disk's images are all read; 0: never")
	c.AddCommand(newStoreSourceCommand())
	return c
}
