package main

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/box/internal/cluster"
	"github.com/varvebackup/varve/box/internal/layout"
)

func rootCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "box",
		Short:         "A whole, real Kubernetes on one Debian machine, in namespaces of its own",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	dir := root.PersistentFlags().String("dir", defaultDir(), "the box's directory, which holds all of its state (env VARVE_BOX_DIR)")
	box := func() (layout.Box, error) {
		abs, err := filepath.Abs(*dir)
		return layout.Box(abs), err
	}
	root.AddCommand(
		upCommand(box, stderr), downCommand(box, stderr), statusCommand(box, stdout), loadCommand(box, stderr), execCommand(box), s3Command(box, stderr),
		nodeEnterCommand(), nodeRunCommand(stderr), csiCommand(box, stderr),
	)
	return root
}

func defaultDir() string {
	if dir := os.Getenv("VARVE_BOX_DIR"); dir != "" {
		return dir
	}
	return layout.DefaultDir
}

type boxFunc func() (layout.Box, error)

func upCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	var cfg cluster.Config
	var subnet string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the box up, or repair it; does nothing when all is well",
		Example: `  box up
  box up --nodes=2`,
		Args: cobra.NoArgs,
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	bin := filepath.Dir(self)
	flags := cmd.Flags()
	flags.IntVar(&cfg.Nodes, "nodes", 1, "how many nodes, 1 or 2; a box that is up only grows")
	flags.StringVar(&cfg.Bridge, "bridge", "varve-box0", "the bridge's name on the host, when the box is new")
	flags.StringVar(&subnet, "subnet", "", "the box's IPv4 /16, when the box is new (default: a free one from 10.213.0.0/16 on)")
	flags.StringVar(&cfg.Programs.Kube, "kube", filepath.Join(bin, "../kube/kube"), "the Kubernetes binary that `make kube` builds")
	flags.StringVar(&cfg.Programs.Pause, "pause", filepath.Join(bin, "box-pause"), "the binary for the pause image")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if cfg.Dir, err = box(); err != nil {
			return err
		}
		cfg.Programs.Box = self
		if subnet != "" {
			if cfg.Subnet, err = netip.ParsePrefix(subnet); err != nil {
				return fmt.Errorf("read --subnet: %w", err)
			}
		}
		return cluster.Up(cmd.Context(), cfg, cluster.NewProgress(stderr))
	}
	return cmd
}

func downCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the box and every trace of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.Down(cmd.Context(), dir, cluster.NewProgress(stderr))
		},
	}
}

func statusCommand(box boxFunc, stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; exit code 0 only when all of it does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.Status(cmd.Context(), dir, stdout)
		},
	}
}

func loadCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:     "load IMAGE.tar...",
		Short:   "Import images into every node, except where they are already",
		Example: `  box load build/images/varve.tar`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.Load(cmd.Context(), dir, args, cluster.NewProgress(stderr))
		},
	}
}

func execCommand(box boxFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARGS...]",
		Short: "Run a command inside a node",
		Example: `  box exec node1 -- ctr -n k8s.io images ls
  box exec node2 -- nft list ruleset`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := box()
			if err != nil {
				return err
			}
			return cluster.Exec(dir, args[0], args[1:])
		},
	}
}
