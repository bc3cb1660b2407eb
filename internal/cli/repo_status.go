package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func (s *repositorySession) repoStatus() *cobra.Command {
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
			return s.withRepository(cmd.Context(), func(r *repository.Repository) error {
				status, err := r.Status(cmd.Context())
				if err != nil {
					return err
				}
				p := &page{w: cmd.OutOrStdout(), now: s.Now()}
				if form != "" {
					p.keep(printData(p.w, form, status))
				} else {
					p.repository(status)
				}
				if p.err == nil && status.Unreadable != "" {
					return fmt.Errorf("%w: restore points cannot be read: %s", errclass.Corrupt, status.Unreadable)
				}
				return p.err
			})
		},
	}
	outputFlag(c, &form, asJSON, asYAML)
	return c
}

func (p *page) repository(s *repository.Status) {
	connection := s.User + "@" + s.Host
	if s.ReadOnly {
		connection += ", read-only"
	}
	free := ""
	if s.FreeBytes != nil {
		free = human.Bytes(*s.FreeBytes)
	}
	m := s.Maintenance
	p.fields(
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
		"Last maintenance", human.Or(p.moment(m.Last)),
		"Last full one", human.Or(p.moment(m.LastFull)),
		"Next quick one", human.Or(p.due(m.NextQuick)),
		"Next full one", human.Or(p.due(m.NextFull)),
	)
	blobs := &table{header: []string{"KIND", "BLOBS", "BYTES"}}
	for _, b := range s.Blobs {
		blobs.add(b.Kind, strconv.FormatInt(b.Blobs, 10), human.Bytes(b.Bytes))
	}
	p.section("Stored blobs", blobs, "none")
	sources := &table{header: []string{"NAME", "HOST", "USER", "RESTORE POINTS", "OLDEST", "LATEST", "SIZE"}}
	for _, h := range s.Sources {
		sources.add(mover.HistoryName(h.Source), h.Source.Host, h.Source.User, strconv.Itoa(h.RestorePoints), timeText(h.Oldest), timeText(h.Latest), human.Bytes(h.DiskBytes))
	}
	p.section("Histories", sources, "none")
	warnings := &table{header: []string{"WARNING"}}
	for _, w := range m.Warnings {
		warnings.add(w)
	}
	p.section("Maintenance warnings", warnings, "")
	failures := &table{header: []string{"TASK", "TIME", "ERROR"}}
	for _, f := range m.Failures {
		failures.add(f.Task, timeText(f.Time), f.Error)
	}
	p.section("Failed maintenance", failures, "")
}

// due returns a future moment, and how far away it is.
func (p *page) due(t time.Time) string {
	if !t.After(p.now) {
		return human.Or(p.moment(t))
	}
	return fmt.Sprintf("%s (in %s)", timeText(t), human.Span(t.Sub(p.now)))
}

func objectLock(l *repository.ObjectLock) string {
	if l == nil {
		return "none"
	}
	return fmt.Sprintf("%s, %s", l.Mode, human.Span(l.Period))
}
