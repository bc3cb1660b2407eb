// Package disk has the commands of `varve disk`.
package disk

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/mover"
)

// NewCommand makes `varve disk`.
func NewCommand(s *repoaccess.Session) *cobra.Command {
	return s.GroupCommand("disk", "Back up, restore, serve, compare and remove restore points of disks",
		`Make, restore, serve, list, compare, verify, pin and remove restore points of disks. They are in
the repository that varve repo connected to, and no cluster is needed; or with --location, in that
of a backup storage location of a cluster, where the data mover has stored volumes.

A restore point holds the disks of one machine at one moment. The restore points of one name, host
and user are a history. Each is a whole image; data that several share is stored once. Any restore
point can be removed without harm to the others.

ID is the ID of a restore point, or its beginning if no other ID begins like this. The NAME of a
machine stands for its latest restore point, and the word latest for the latest of all. To delete,
give IDs.`,
		`  varve disk backup web root=/var/lib/vms/web.img
  varve disk list web
  varve disk verify --percent 10
  varve disk prune web --keep-daily 7 --keep-weekly 4 --dry-run`,
		newBackupCommand(s), newCheckpointCommand(s), newListCommand(s), newDescribeCommand(s), newDefinitionCommand(s), newDiffCommand(s), newVerifyCommand(s), newRestoreCommand(s), newServeCommand(s), newDeleteCommand(s), newPruneCommand(s), newPinCommand(s), newUnpinCommand(s))
}

// historyFlags select histories in addition to their names, or say whose a new restore point is.
type historyFlags struct{ host, user string }

func (f *historyFlags) addFlags(c *cobra.Command, what string) {
	c.Flags().StringVar(&f.host, "host", "", what+" of this host")
	c.Flags().StringVar(&f.user, "user", "", what+" of this user")
}

// newFilter selects the histories of the flags' host and user that have one of the names. No names select all.
func (f *historyFlags) newFilter(names []string) mover.HistoryFilter {
	return mover.HistoryFilter{Host: f.host, User: f.user, Names: names}
}

// maxNameBytes bounds the name of a history.
const maxNameBytes = 200

// validateHistoryName refuses a name that a history cannot have. The name becomes a path in the repository.
func validateHistoryName(name string) error {
	switch {
	case strings.Trim(name, "/") == "":
		return failure.Usage("the name of the machine is empty")
	case len(name) > maxNameBytes:
		return failure.Usage("the name of the machine has %d bytes: use at most %d", len(name), maxNameBytes)
	case human.Line(name) != name:
		return failure.Usage("name %q has control characters, or spaces around it", name)
	case mover.HistoryPath(name) != "/"+strings.TrimPrefix(name, "/"):
		return failure.Usage("name %q: use %q", name, strings.TrimPrefix(mover.HistoryPath(name), "/"))
	}
	return nil
}

// addDiskFlag adds --disk.
func addDiskFlag(s *repoaccess.Session, c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "disk", "", "the disk's name; not needed if there is only one")
	cmdline.RegisterCompletion(c, "disk", completeDisk(s))
}
