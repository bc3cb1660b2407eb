package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/moverpod/deletion"
)

// deletePointsCommand is `varve mover delete-points`, the program in a deletion pod.
func deletePointsCommand(env environment) *cobra.Command {
	var level string
	o := deletion.Options{
		AccessFile: filepath.Join(datamove.AccessDirectory, datamove.AccessKey), CacheDirectory: os.TempDir(), MessageFile: terminationLog, Now: time.Now,
	}
	c := &cobra.Command{
		Use:   "delete-points",
		Short: "Delete restore points whose DataUploads are deleted",
		Long: "Delete restore points of a repository, in the Job that the controller makes when DataUploads are deleted. The environment variable\n" +
			datamove.DeletionVariable + " names them. Pinned and locked ones stay, and those whose Velero backup is still in the location.",
		Example: "  varve mover delete-points",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			lines, err := newLogHandler(level, c.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Job, o.Log = env(datamove.DeletionVariable), slog.New(lines)
			return deletion.Run(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.AccessFile, "access", o.AccessFile, "the file with the access to the repository")
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}
