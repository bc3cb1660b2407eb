package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// shortID is how much of an ID tables show, unless two begin with the same characters.
	shortID = 12
	// maxCell is how many columns of a name a table shows unless it is wide.
	maxCell = 40
)

// pointList are restore points as tables show them.
type pointList struct {
	*mover.Points

	// length is how much of an ID is shown.
	length int
}

// listPoints lists what can be read. Unreadable restore points are no error.
func listPoints(ctx context.Context, r *repository.Repository) (*pointList, error) {
	points, err := mover.ListPoints(ctx, r)
	if err != nil {
		return nil, err
	}
	return newPointList(points), nil
}

// listNamed lists the restore points that words name, and shows their whole IDs. It returns the IDs, or their beginnings,
// with which the words are found in the list.
func listNamed(ctx context.Context, r *repository.Repository, words ...string) (l *pointList, prefixes []string, err error) {
	if prefixes, err = resolvePoints(ctx, r, words...); err != nil {
		return nil, nil, err
	}
	points, err := mover.ListPointsByID(ctx, r, prefixes...)
	if err != nil {
		return nil, nil, err
	}
	l = newPointList(points)
	for _, p := range l.All {
		l.length = max(l.length, len(p.ID)) // IDs that are not listed may begin with the same characters.
	}
	return l, prefixes, nil
}

// findPoint returns the restore point that word names: with an ID, its beginning, the name of a machine, or `latest`.
func findPoint(ctx context.Context, r *repository.Repository, word string) (*repository.RestorePoint, error) {
	l, prefixes, err := listNamed(ctx, r, word)
	if err != nil {
		return nil, err
	}
	return l.Find(prefixes[0])
}

func newPointList(points *mover.Points) *pointList {
	l := &pointList{Points: points, length: shortID}
	for l.ambiguous() {
		l.length++
	}
	return l
}

// ambiguous reports whether two restore points have the same short ID.
func (l *pointList) ambiguous() bool {
	seen := map[string]bool{}
	for _, p := range l.All {
		if seen[l.short(p.ID)] && len(p.ID) > l.length {
			return true
		}
		seen[l.short(p.ID)] = true
	}
	return false
}

// short returns the beginning of an ID, with which no other restore point's ID begins.
func (l *pointList) short(id string) string { return id[:min(l.length, len(id))] }

// warn reports restore points that cannot be read, when that does not fail the command.
func (l *pointList) warn(w io.Writer) {
	if l.Unreadable == nil {
		return
	}
	for line := range strings.SplitSeq(l.Unreadable.Error(), "\n") {
		fmt.Fprintf(w, "warning: %s\n", human.Line(line))
	}
}

// pointItems is the form of restore points for programs.
type pointItems struct {
	Items []*repository.RestorePoint `json:"items"`
}

// printPoints writes restore points in a form for programs.
func printPoints(w io.Writer, form string, points []*repository.RestorePoint) error {
	if form != output.AsName {
		return output.PrintData(w, form, pointItems{Items: append([]*repository.RestorePoint{}, points...)})
	}
	for _, p := range points {
		fmt.Fprintln(w, p.ID)
	}
	return nil
}

func pointTable(l *pointList, points []*repository.RestorePoint, wide bool) *output.Table {
	t := &output.Table{Header: []string{"TIME", "ID", "HOST", "NAME", "DISKS", "SIZE", "CHANGED", "TYPE", "PINS"}}
	if wide {
		t.Header = append(t.Header, "USER", "PARENT")
	}
	for _, p := range points {
		id, name, disks := l.short(p.ID), human.Short(mover.HistoryName(p.Source), maxCell), human.Short(strings.Join(mover.DiskNames(p), ","), maxCell)
		if wide {
			id, name, disks = p.ID, mover.HistoryName(p.Source), strings.Join(mover.DiskNames(p), ",")
		}
		row := []string{
			output.FormatTime(p.Time), id, p.Source.Host, name, disks, human.Bytes(p.DiskBytes()),
			human.Bytes(changedBytes(p)), pointType(p), strings.Join(p.Pins, ","),
		}
		if wide {
			row = append(row, p.Source.User, strings.Join(parents(p), ","))
		}
		t.Add(row...)
	}
	return t
}

func changedBytes(p *repository.RestorePoint) (n int64) {
	for _, d := range p.Disks {
		n += d.Stats.ChangedBytes
	}
	return n
}

func parents(p *repository.RestorePoint) (ids []string) {
	for _, d := range p.Disks {
		if d.Parent != "" && !slices.Contains(ids, d.Parent) {
			ids = append(ids, d.Parent)
		}
	}
	return ids
}

// fullReason returns the reason why a disk is full for a table. Without change tracking, which most disks do not have,
// every backup is full: that is no fault, and its reason must not look like one.
func fullReason(reason repository.FullReason) string {
	if reason == repository.FullNoChanges {
		return "not tracked"
	}
	return string(reason)
}

// pointType returns Incremental if all disks are incremental, and Full with the reasons if none is.
func pointType(p *repository.RestorePoint) string {
	if len(p.Disks) == 0 {
		return "Unreadable"
	}
	var reasons []string
	full := 0
	for _, d := range p.Disks {
		if d.FullReason == "" {
			continue
		}
		full++
		if reason := fullReason(d.FullReason); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	switch full {
	case 0:
		return "Incremental"
	case len(p.Disks):
		return fmt.Sprintf("Full (%s)", strings.Join(reasons, ", "))
	default:
		return fmt.Sprintf("%d of %d disks full (%s)", full, len(p.Disks), strings.Join(reasons, ", "))
	}
}

// identified holds what identifies a restore point.
type identified struct {
	ID     string            `json:"id"`
	Source repository.Source `json:"source"`
	Time   time.Time         `json:"time"`
}

func identify(p *repository.RestorePoint) identified {
	return identified{ID: p.ID, Source: p.Source, Time: p.Time}
}
