package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/moverpod/maintenance"
)

// terminationLog is where the kubelet looks for a container's last words.
const terminationLog = "/dev/termination-log"

// maintainCommand is `varve mover maintain`, the program in a maintenance pod.
func maintainCommand(env environment) *cobra.Command {
	var level string
	o := maintenance.Options{
		AccessFile: filepath.Join(datamove.AccessDirectory, datamove.AccessKey), CacheDirectory: os.TempDir(), MessageFile: terminationLog, Now: time.Now,
	}
	c := &cobra.Command{
		Use:   "maintain",
		Short: "Do the maintenance of a repository that is due",
		Long: "Do the maintenance of a repository that is due, in the Job that the controller makes for a BackupRepository: quick, and once a\n" +
			"day full.",
		Example: "  varve mover maintain",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			lines, err := newLogHandler(level, c.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Log = slog.New(lines)
			o.CollectMissing = env(datamove.CollectMissingVariable)
			return maintenance.Run(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.AccessFile, "access", o.AccessFile, "the file with the access to the repository")
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}
