package main

import (
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/box/internal/cluster"
)

func s3Command(box boxFunc, stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{Use: "s3", Short: "An S3 service beside the box, with TLS, for pods and the host"}
	cmd.AddCommand(s3UpCommand(box, stderr), s3DownCommand(box, stderr), s3RunCommand(box))
	return cmd
}

func s3UpCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the S3 service up, or repair it; what it stores stays until `box down` or `box s3 down`",
		Args:  cobra.NoArgs,
	}
	versitygw := cmd.Flags().String("versitygw", filepath.Join(filepath.Dir(self), "../peers/bin", cluster.S3Program), "the server that `make peers` builds")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := box()
		if err != nil {
			return err
		}
		return cluster.S3Up(cmd.Context(), dir, *versitygw, self, cluster.NewProgress(stderr))
	}
	return cmd
}

func s3DownCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the S3 service and everything that it stores",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.S3Down(cmd.Context(), dir, cluster.NewProgress(stderr))
		},
	}
}

// s3RunCommand is what `box s3 up` starts.
func s3RunCommand(box boxFunc) *cobra.Command {
	return &cobra.Command{
		Use: "run -- ARGS...", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.S3Run(dir, args)
		},
	}
}
