package main

import (
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/moverpod"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// moverCommand is `varve mover`, the programs of the pods that work on repositories.
func moverCommand(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "mover",
		Short: "Move a volume into a repository or out of it, or look after a repository",
		Long:  "Move a volume into a repository or out of it, maintain one, look whether there is one, serve one, or delete restore points, in a pod that Varve makes for it.",
		Example: `  varve mover upload
  varve mover download
  varve mover maintain
  varve mover look
  varve mover serve-storage
  varve mover delete-points`,
	}
	c.AddCommand(
		moveCommand(env, "upload", datamove.Upload, "Store the pod's volume as a restore point", "Store the volume of the pod in the repository as a restore point, for a DataUpload."),
		moveCommand(env, "download", datamove.Download, "Write a restore point to the pod's volume", "Write a restore point of the repository to the volume of the pod, for a DataDownload."),
		maintainCommand(env),
		lookCommand(env),
		serveStorageCommand(),
		deletePointsCommand(env),
	)
	return c
}

// moveCommand returns `varve mover upload` or `varve mover download`.
func moveCommand(env environment, verb string, kind datamove.Kind, short, long string) *cobra.Command {
	var s server
	c := &cobra.Command{
		Use:   verb,
		Short: short,
		Long: long + " The variable\n" + datamove.JobVariable + " says which, and " + datamove.PodNameVariable + " and " + datamove.PodUIDVariable + " are the pod's own name and UID.\n\n" +
			"Exit codes: 0 if the outcome is on the object, or if there is nothing to do; 1 if it should be started again.",
		Example: "  varve mover " + verb,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.runMover(c, env, kind); err != nil {
				return failure.New("", "%w", err) // Every failure has the exit code 1.
			}
			return nil
		},
	}
	c.Flags().StringVar(&s.kubeconfig, "kubeconfig", env("KUBECONFIG"), "how to reach the API server; empty: as a pod")
	c.Flags().StringVar(&s.level, "log-level", "info", "debug, info, warn or error")
	return c
}

func (s *server) runMover(c *cobra.Command, env environment, kind datamove.Kind) error {
	job, err := datamove.DecodeJob(env(datamove.JobVariable))
	if err != nil {
		return err
	}
	if job.Kind != kind {
		return fmt.Errorf("%s is for a %s, and `%s` for a %s", datamove.JobVariable, job.Kind, c.CommandPath(), kind)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.level)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	secrets := &repositoryaccess.Secrets{}
	lines := slog.NewTextHandler(secrets.Writer(c.ErrOrStderr()), &slog.HandlerOptions{Level: level})
	log.SetLogger(logr.FromSlogHandler(lines))
	klog.SetLogger(logr.FromSlogHandler(lines))
	config, err := s.restConfig("mover", requestLimit{perSecond: -1, burst: -1})
	if err != nil {
		return err
	}
	return moverpod.Run(c.Context(), moverpod.Options{
		Job: job, PodName: env(datamove.PodNameVariable), PodUID: types.UID(env(datamove.PodUIDVariable)),
		Config: config, Files: moverpod.PodFiles(job), Log: slog.New(lines), Secrets: secrets,
	})
}
