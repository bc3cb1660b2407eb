package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/source"
)

// newStoreSourceCommand returns `varve store source`, the program of the pod that makes the first copy of an image.
func newStoreSourceCommand() *cobra.Command {
	var o source.Options
	c := &cobra.Command{
		Use:   "source",
		Short: "Download or receive an image, and write it to the pod's block device",
		Long: `Download or receive an image, and write it to the pod's block device as a raw image. The variable
` + handover.SourceVariable + ` says where it is:

  {"type": "download", "url": "https://example.com/disk.qcow2", "caCertificate": "..."}
  {"type": "upload", "image": "debian"}

For an upload, it listens on the loopback interface until a command has sent the file (varve image
upload). It gives up when no byte has come for an hour.

The file is raw or qcow2, and may be compressed with gzip, xz or zstd. With caCertificate (PEM),
that authority alone is trusted.

Exit codes: 0 if the image is on the device; 1 if it is not. The termination log says why.`,
		Example: "  varve store source",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Config, o.Clock = os.Getenv(handover.SourceVariable), clock.RealClock{}
			o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if err := source.Run(c.Context(), o); err != nil {
				return failure.New("", "%w", err) // Every failure has the exit code 1.
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.Device, "device", "/dev/image", "the block device that gets the image")
	c.Flags().StringVar(&o.Scratch, "scratch", "/tmp", "a directory for files that a conversion needs")
	c.Flags().StringVar(&o.TerminationLog, "termination-log", "/dev/termination-log",
		"the file that gets the error in one line; empty: none")
	return c
}
