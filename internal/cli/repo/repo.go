// Package repo has the commands of `varve repo`.
package repo

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/repoaccess"
)

// NewCommand makes `varve repo`.
func NewCommand(s *repoaccess.Session) *cobra.Command {
	return s.GroupCommand("repo", "Create, connect to, check and maintain a repository of disks",
		`Create, connect to, check and maintain a repository of disks: a directory, or a bucket of
any S3 storage. No cluster is needed.

A repository is always encrypted. The password comes from the file of --password-file, from
VARVE_PASSWORD, or from a prompt. It is not stored anywhere: without it, nobody can read what
is in the repository. Connecting writes the file --repo-config, which all other commands of
varve repo and varve disk read; with --location, most of them take the repository of a backup
storage location of a cluster instead.`,
		`  varve repo create /mnt/backups
  varve repo connect s3://s3.example.com/backups/varve
  varve repo status`,
		newCreateCommand(s), newConnectCommand(s), newStatusCommand(s), newCheckCommand(s), newMaintenanceCommand(s), newRepairCommand(s))
}
