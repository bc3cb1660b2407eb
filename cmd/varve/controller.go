package main

import (
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/admission"
	"github.com/varvebackup/varve/internal/controller"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
)

// controllerCommand is `varve controller`, the cluster's part.
func controllerCommand(env environment) *cobra.Command {
	var s server
	var o controller.Options
	var policy, clientCA string
	c := &cobra.Command{
		Use:     "controller",
		Short:   "Run the cluster's part: machines, volumes, backups",
		Long:    "Run the cluster's part of Varve: machines to instances to launcher pods, attachment pods, and a backup's life\noutside the node. deploy/ runs it.",
		Example: `  varve controller --kubeconfig ~/.kube/config --launcher-image varve-launcher:dev --varve-image varve:dev`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := o.Images.Validate(); err != nil {
				return err
			}
			if o.Logger, err = s.newLogger(c.ErrOrStderr()); err != nil {
				return err
			}
			if o.Config, err = s.restConfig("controller", controllerLimit); err != nil {
				return err
			}
			o.Namespace, o.MetricsAddress, o.HealthAddress = s.namespace, s.metrics, s.health
			if o.ImagePullPolicy, err = parsePullPolicy(policy); err != nil {
				return err
			}
			o.Webhook = &admission.Options{}
			if o.Webhook.ClientCAs, err = readAuthorities(clientCA); err != nil {
				return err
			}
			if o.ExportProxyHost != "" {
				if err := exportproxy.CheckHost(o.ExportProxyHost); err != nil {
					return fmt.Errorf("--export-proxy-host: %w", err)
				}
			}
			return controller.Run(c.Context(), o)
		},
	}
	s.addFlags(c.Flags(), env)
	c.Flags().BoolVar(&o.BesideKubeVirt, "beside-kubevirt", false,
		"leave machines to the cluster's KubeVirt, and back them up through its API; deploy/beside sets it")
	c.Flags().StringVar(&o.LauncherImage, "launcher-image", "", "the image of launcher pods (required)")
	c.Flags().StringVar(&o.VarveImage, "varve-image", "",
		"the image of attachment pods, export pods, mover pods, maintenance pods and init containers (required)")
	c.Flags().StringVar(&policy, "image-pull-policy", "", "when both images are pulled: Always, IfNotPresent or Never")
	c.Flags().StringVar(&clientCA, "webhook-client-ca", "", "the authority of the API server's client certificate, in PEM: the webhook answers nobody without one; empty: it answers everybody")
	c.Flags().BoolVar(&o.LeaderElection, "leader-elect", false, "let one of several replicas work at a time")
	c.Flags().StringVar(&o.ExportProxyHost, "export-proxy-host", "", "the DNS name or IP address, with a port if it is not 443, where clients outside the cluster reach the export proxy; empty: the host of the Ingress varve-exportproxy, if there is one")
	c.Flags().DurationVar(&o.StopWaitsForBackup, "stop-waits-for-backup", 0, "how long a stop waits for a running backup, as the handlers have it; 0: 10 minutes")
	o.Images.AddFlags(c.Flags())
	return c
}

// readAuthorities reads the certificates of a file in PEM. It returns nil if there is no path.
func readAuthorities(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no authorities
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--webhook-client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--webhook-client-ca %s: the file has no certificate in PEM format", path)
	}
	return pool, nil
}
