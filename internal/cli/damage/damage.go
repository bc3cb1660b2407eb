// Package damage looks for damage in a repository and shows what it finds, for `varve repo check` and `varve disk verify`.
package damage

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// result is what `repo check` and `disk verify` found.
type result struct {
	RestorePoints int `json:"restorePoints"`
	// Contents with Bytes bytes were read, which is Percent of all.
	Percent  float64 `json:"percent"`
	Contents int64   `json:"contents"`
	Bytes    int64   `json:"bytes"`
	// Damaged are the parts of disks that cannot be restored, Good the restore points without damage.
	Damaged []part                  `json:"damaged"`
	Good    []restorepoint.Identity `json:"good"`
	// Unreadable names the restore points that cannot even be listed; "" if all can.
	Unreadable string `json:"unreadable,omitempty"`
}

// part is a damaged part of a disk: Bytes from Offset on, or the whole disk if Bytes is 0. Of files, it is a file or directory.
type part struct {
	restorepoint.Identity `json:",inline"`

	Disk   string `json:"disk"`
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
}

// Check looks for damage and prints what it finds. Damage is an error.
func Check(ctx context.Context, s *repoaccess.Session, w io.Writer, form string, percent float64, d *session.Display) error {
	return s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		var report *repository.Report
		err := d.ShowWhile(s.Session, func(show func(progress.Report)) (err error) {
			report, err = mover.Verify(ctx, r, mover.VerifyRequest{Percent: percent, Progress: func(p mover.Progress) { show(repoaccess.NewReport("repository", p)) }})
			return err
		})
		if err != nil {
			return err
		}
		list := restorepoint.NewList(mover.NewPoints(report.Points, report.Unlisted))
		c := newResult(report, list, percent)
		if err := c.printAs(w, form, list, percent > 0); err != nil {
			return err
		}
		if report.Unrecorded != nil {
			s.Warn(fmt.Errorf("backups may still take what is damaged for stored: %w", report.Unrecorded))
		}
		return c.damageError()
	})
}

func newResult(report *repository.Report, list *restorepoint.List, percent float64) *result {
	c := &result{
		RestorePoints: len(list.All), Percent: percent, Contents: report.Contents, Bytes: report.Bytes,
		Damaged: []part{}, Good: []restorepoint.Identity{}, // [] in JSON, not null
	}
	bad := map[string]bool{}
	for _, d := range report.Damage {
		bad[d.Point.ID] = true
		c.Damaged = append(c.Damaged, part{Identity: restorepoint.Identify(d.Point), Disk: d.Disk, File: d.File, Offset: d.Extent.Offset, Bytes: d.Extent.Length, Reason: d.Err.Error()})
	}
	for _, p := range list.All {
		if !bad[p.ID] {
			c.Good = append(c.Good, restorepoint.Identify(p))
		}
	}
	if list.Unreadable != nil {
		c.Unreadable = list.Unreadable.Error()
	}
	return c
}

func (c *result) printAs(w io.Writer, form string, list *restorepoint.List, read bool) error {
	if output.IsForPrograms(form) {
		return output.PrintData(w, form, c)
	}
	if len(c.Damaged) > 0 {
		t := &output.Table{Header: []string{"ID", "HOST", "NAME", "TIME", "DISK", "BYTES", "REASON"}}
		for _, d := range c.Damaged {
			where := "all"
			switch {
			case d.File != "":
				where = d.File
			case d.Bytes > 0:
				where = fmt.Sprintf("%d+%d", d.Offset, d.Bytes)
			}
			t.Add(list.ShortID(d.ID), d.Source.Host, mover.HistoryName(d.Source), output.FormatTime(d.Time), d.Disk, where, d.Reason)
		}
		return t.Write(w)
	}
	if c.Unreadable != "" {
		return nil
	}
	what := "every block is present; the data was not read"
	if read {
		what = fmt.Sprintf("%v%% of the data was read, %s in %s", c.Percent, human.Bytes(c.Bytes), human.Count(c.Contents, "content"))
	}
	_, err := fmt.Fprintf(w, "%s good: %s\n", human.Count(c.RestorePoints, "restore point"), what)
	return err
}

// damageError returns the error for the damage.
func (c *result) damageError() error {
	const hint = "everything outside of the damage can be restored, and so can the restore points that -o json lists as good"
	var ids []string
	for _, d := range c.Damaged {
		ids = append(ids, d.ID)
	}
	slices.Sort(ids)
	n := len(slices.Compact(ids))
	switch {
	case c.Unreadable != "" && n == 0:
		return failure.New(hint, "restore points cannot be listed: %s", c.Unreadable)
	case c.Unreadable != "":
		return failure.New(hint, "%s damaged, and others cannot be listed: %s", human.Count(n, "restore point"), c.Unreadable)
	case n > 0:
		return failure.New(hint, "%d of %s damaged", n, human.Count(c.RestorePoints, "restore point"))
	default:
		return nil
	}
}
