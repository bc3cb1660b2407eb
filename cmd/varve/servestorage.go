package main

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/moverpod/storageserver"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// storageAddress is on the pod's loopback, which nobody reaches but who forwards a port to the pod.
var storageAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(datamove.StoragePort))

// serveStorageCommand is `varve mover serve-storage`, the program of a pod through which a user's command reaches a repository.
func serveStorageCommand() *cobra.Command {
	var level string
	o := storageserver.Options{Idle: datamove.ServeIdle, Clock: clock.RealClock{}}
	c := &cobra.Command{
		Use:   datamove.ServeStorage,
		Short: "Serve the repository on a claim or an NFS export to a user's command",
		Long: "Serve a directory of the pod's storage on the pod's loopback, in the pod that `varve repo` and `varve disk` make for a --location\n" +
			"that only pods can mount. It answers requests that have the command's key, and ends when nobody has asked for " +
			datamove.ServeIdle.String() + ".",
		Example: "  varve mover serve-storage --directory " + datamove.StorageDirectory +
			"/plugins/varve/app --key-sha256 ...",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if !filepath.IsAbs(o.Directory) {
				return failure.Usage("--directory %q: give an absolute path", o.Directory)
			}
			if !blobhttp.IsDigest(o.KeyDigest) {
				return failure.Usage("--key-sha256 %q: give the SHA-256 of the key that the command sends, in hexadecimal",
					o.KeyDigest)
			}
			lines, err := newLogHandler(level, c.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Log = slog.New(lines)
			if o.Listener, err = (&net.ListenConfig{}).Listen(c.Context(), "tcp", storageAddress); err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			return storageserver.Run(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.Directory, "directory", "", "the repository's directory")
	c.Flags().StringVar(&o.KeyDigest, "key-sha256", "", "the SHA-256 of the key that the command sends with each request")
	c.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return c
}
