package cli

import (
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/repository"
)

func (s *session) disk() *cobra.Command {
	return s.repositoryGroup("disk", "Back up, restore, serve, compare and remove restore points of disks",
		`Restore points of disks in a repository that varve repo connected to: make, restore, serve,
list, compare, verify, pin and remove them. No cluster is needed.

A restore point holds the disks of one machine at one moment. Those of one name, host and user
are a history. Each is a whole image, and what it shares with others is stored once: any of them
can go without the rest noticing. An ID may be abbreviated to its beginning, if that is unique.`,
		`  varve disk backup web root=/var/lib/vms/web.img
  varve disk list web
  varve disk verify --percent 10
  varve disk prune web --keep-daily 7 --keep-weekly 4 --dry-run`,
		s.diskBackup(), s.diskCheckpoint(), s.diskList(), s.diskDescribe(), s.diskDiff(), s.diskVerify(), s.diskRestore(), s.diskServe(), s.diskDelete(), s.diskPrune(), s.diskPin(), s.diskUnpin())
}

// sourceFlags select histories in addition to their names, or say whose a new restore point is.
type sourceFlags struct{ host, user string }

func (f *sourceFlags) flags(c *cobra.Command, what string) {
	c.Flags().StringVar(&f.host, "host", "", what+" of this host")
	c.Flags().StringVar(&f.user, "user", "", what+" of this user")
}

// selects reports whether a source has the flags' host and user and one of the names. No names select all.
func (f *sourceFlags) selects(o repository.Source, names []string) bool {
	named := len(names) == 0
	for _, name := range names {
		named = named || o.Path == sourcePath(name)
	}
	return named && (f.host == "" || o.Host == f.host) && (f.user == "" || o.User == f.user)
}

// sourcePath returns the path in the repository of the history that the user calls name. sourceName is its inverse.
func sourcePath(name string) string { return path.Clean("/" + name) }

func sourceName(s repository.Source) string { return strings.TrimPrefix(s.Path, "/") }

// maxNameBytes bounds the name of a history.
const maxNameBytes = 200

// historyName refuses a name that a history cannot have. The name becomes a path in the repository.
func historyName(name string) error {
	switch {
	case strings.Trim(name, "/") == "":
		return usage("the name of the machine is empty")
	case len(name) > maxNameBytes:
		return usage("the name of the machine has %d bytes: at most %d", len(name), maxNameBytes)
	case human.Line(name) != name:
		return usage("name %q: it has control characters, or spaces around it", name)
	case sourcePath(name) != "/"+strings.TrimPrefix(name, "/"):
		return usage("name %q: write it as %q", name, strings.TrimPrefix(sourcePath(name), "/"))
	}
	return nil
}

// diskFlag adds --disk.
func (s *session) diskFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "disk", "", "the disk's name; it may be left out where there is only one")
	register(c, "disk", s.completeDisk)
}

// timeText formats a moment for a table.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
