package main

import (
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/box/internal/csi"
	"github.com/varvebackup/varve/box/internal/node"
	"github.com/varvebackup/varve/box/internal/service"
)

// The box itself runs the commands of this file.

func nodeEnterCommand() *cobra.Command {
	return &cobra.Command{
		Use: "node-enter", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return node.Enter() },
	}
}

func nodeRunCommand(stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "node-run SPEC", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := node.LoadSpec(args[0])
			if err != nil {
				return err
			}
			children := make(chan os.Signal, 1)
			signal.Notify(children, syscall.SIGCHLD)
			log := slog.New(slog.NewTextHandler(stderr, nil))
			return node.NewSupervisor(spec.Layout(), log).Run(cmd.Context(), service.Services(spec), children)
		},
	}
}

func csiCommand(box boxFunc, stderr io.Writer) *cobra.Command {
	var name string
	cmd := &cobra.Command{Use: "csi", Hidden: true, Args: cobra.NoArgs}
	cmd.Flags().StringVar(&name, "node", "", "the node to serve")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := box()
		if err != nil {
			return err
		}
		return csi.Run(cmd.Context(), dir, name, slog.New(slog.NewTextHandler(stderr, nil)))
	}
	return cmd
}
