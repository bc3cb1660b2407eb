package repo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newStatusCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "status", Short: "Show the location, format and contents of a repository",
		Long: `Show where the repository is, its format, the histories in it, the bytes that are stored, and
when maintenance ran last and is due.`,
		Example: `  varve repo status

  # Bytes in the storage
  varve repo status -o json | jq '[.blobs[].bytes] | add'`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				status, err := r.Status(ctx)
				if err != nil {
					return err
				}
				p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
				if form != "" {
					p.Keep(output.PrintData(p.Out, form, status))
				} else {
					writeStatus(p, status)
				}
				if p.Err == nil && status.Unreadable != "" {
					return fmt.Errorf("%w: restore points cannot be read: %s", errclass.Corrupt, status.Unreadable)
				}
				return p.Err
			})
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

func writeStatus(p *output.Page, s *repository.Status) {
	connection := s.User + "@" + s.Host
	if s.ReadOnly {
		connection += ", read-only"
	}
	free := ""
	if s.FreeBytes != nil {
		free = human.Bytes(*s.FreeBytes)
	}
	m := s.Maintenance
	p.Fields(
		"Location", s.Location,
		"Unique ID", s.UniqueID,
		"Connection", s.ConfigFile,
		"Connected as", connection,
		"Format", strconv.Itoa(s.Format.Version),
		"Hash", s.Format.Hash,
		"Encryption", s.Format.Encryption,
		"Error correction", s.Format.ErrorCorrection,
		"Pack size", human.Bytes(int64(s.Format.PackBytes)),
		"Object lock", objectLock(s.ObjectLock),
		"Restore points", strconv.Itoa(s.RestorePoints),
		"Contents", strconv.FormatInt(s.Contents, 10),
		"Index in memory", "about "+human.Bytes(s.IndexMemoryBytes),
		"Stored", human.Bytes(s.TotalBytes()),
		"Free", free,
		"Maintenance unknown", m.Unknown,
		"Maintenance owner", human.Or(m.Owner),
		"Last maintenance", human.Or(p.Moment(m.Last)),
		"Last full one", human.Or(p.Moment(m.LastFull)),
		"Next quick one", human.Or(dueText(p, m.NextQuick)),
		"Next full one", human.Or(dueText(p, m.NextFull)),
	)
	blobs := &output.Table{Header: []string{"KIND", "BLOBS", "BYTES"}}
	for _, b := range s.Blobs {
		blobs.Add(b.Kind, strconv.FormatInt(b.Blobs, 10), human.Bytes(b.Bytes))
	}
	p.Section("Stored blobs", blobs, "none")
	sources := &output.Table{Header: []string{"NAME", "HOST", "USER", "RESTORE POINTS", "OLDEST", "LATEST", "SIZE"}}
	for _, h := range s.Sources {
		sources.Add(mover.HistoryName(h.Source), h.Source.Host, h.Source.User, strconv.Itoa(h.RestorePoints), output.FormatTime(h.Oldest), output.FormatTime(h.Latest), human.Bytes(h.DiskBytes))
	}
	p.Section("Histories", sources, "none")
	warnings := &output.Table{Header: []string{"WARNING"}}
	for _, w := range m.Warnings {
		warnings.Add(w)
	}
	p.Section("Maintenance warnings", warnings, "")
	failures := &output.Table{Header: []string{"TASK", "TIME", "ERROR"}}
	for _, f := range m.Failures {
		failures.Add(f.Task, output.FormatTime(f.Time), f.Error)
	}
	p.Section("Failed maintenance", failures, "")
}

// dueText returns a future moment, and how far away it is.
func dueText(p *output.Page, t time.Time) string {
	if !t.After(p.Now) {
		return human.Or(p.Moment(t))
	}
	return fmt.Sprintf("%s (in %s)", output.FormatTime(t), human.Span(t.Sub(p.Now)))
}

func objectLock(l *repository.ObjectLock) string {
	if l == nil {
		return "none"
	}
	return fmt.Sprintf("%s, %s", l.Mode, human.Span(l.Period))
}
