package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/export/proxy"
)

// exportProxyCommand is `varve export-proxy`, through which clients outside the cluster reach exports.
func exportProxyCommand() *cobra.Command {
	var address, level string
	files := proxy.PodFiles()
	c := &cobra.Command{
		Use:     "export-proxy",
		Short:   "Serve exports to clients outside the cluster",
		Long:    "Pass the requests of clients outside the cluster on to exports, over HTTPS. deploy/ runs it.",
		Example: "  varve export-proxy",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			lines, err := newLogHandler(level, c.ErrOrStderr())
			if err != nil {
				return err
			}
			listener, err := (&net.ListenConfig{}).Listen(c.Context(), "tcp", address)
			if err != nil {
				return fmt.Errorf("listen for clients: %w", err)
			}
			log := slog.New(lines)
			log.Info("serving", "address", listener.Addr().String())
			return proxy.New(proxy.Options{Files: files, Log: log}).Serve(c.Context(), listener)
		},
	}
	c.Flags().StringVar(&address, "listen", fmt.Sprintf(":%d", proxy.Port), "where clients are served")
	c.Flags().StringVar(&files.Certificate, "certificate", files.Certificate, "the certificate for clients, in PEM; it is read again when it changes")
	c.Flags().StringVar(&files.Key, "key", files.Key, "the certificate's key, in PEM")
	c.Flags().StringVar(&files.Authorities, "authorities", files.Authorities, "the authorities of exports, in PEM; they are read again when they change")
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}
