package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/export/exporter"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// exportServerCommand is `varve export-server`, the program in an export pod.
func exportServerCommand(env environment) *cobra.Command {
	var level string
	c := &cobra.Command{
		Use:   "export-server",
		Short: "Serve the disks of an export pod over HTTPS",
		Long: "Serve the disks of a VirtualMachineExport over HTTPS, in the pod that the controller makes for it. The variable\n" +
			podspec.ConfigVariable + " says what to serve.",
		Example: "  varve export-server",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := podspec.Decode(env(podspec.ConfigVariable))
			if err != nil {
				return fmt.Errorf("%s: %w", podspec.ConfigVariable, err)
			}
			lines, err := newLogHandler(level, c.ErrOrStderr())
			if err != nil {
				return err
			}
			log := slog.New(lines)
			log.Info("serving", "export", config.Namespace+"/"+config.Name, "volumes", len(config.Volumes), "backup", config.Backup != nil)
			return exporter.Run(c.Context(), exporter.Options{Config: config, Files: exporter.PodFiles(), Log: log})
		},
	}
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}
