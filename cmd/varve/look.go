package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/moverpod/look"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// lookCommand is `varve mover look`, the program in a pod that looks into a storage.
func lookCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "look",
		Short: "Look into the storage of a location",
		Long: "Look into the storage of a location that is a claim or an NFS export, in the pod that the controller makes for that. The variable\n" +
			repositoryaccess.LookVariable + " says what to look for.",
		Example: "  varve mover look",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return look.Run(c.Context(), look.Options{
				Look: env(repositoryaccess.LookVariable), PasswordFile: filepath.Join(datamove.AccessDirectory, datamove.PasswordKey), MessageFile: terminationLog, Now: time.Now,
			})
		},
	}
}
