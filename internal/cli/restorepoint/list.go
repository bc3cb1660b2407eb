// Package restorepoint finds restore points by what the user calls them, and shows them.
package restorepoint

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// shortID is how much of an ID tables show, unless two begin with the same characters.
	shortID = 12
	// maxCell is how many columns of a name a table shows unless it is wide.
	maxCell = 40
)

// List are restore points as tables show them.
type List struct {
	*mover.Points

	// Length is how much of an ID is shown.
	Length int
}

// ReadAll lists what can be read. Unreadable restore points are no error.
func ReadAll(ctx context.Context, r *repository.Repository) (*List, error) {
	points, err := mover.ListPoints(ctx, r)
	if err != nil {
		return nil, err
	}
	return NewList(points), nil
}

// ReadNamed lists the restore points that words name, and shows their whole IDs. It returns the IDs, or their beginnings,
// with which the words are found in the list.
func ReadNamed(ctx context.Context, r *repository.Repository, words ...string) (l *List, prefixes []string, err error) {
	if prefixes, err = resolveWords(ctx, r, words...); err != nil {
		return nil, nil, err
	}
	points, err := mover.ListPointsByID(ctx, r, prefixes...)
	if err != nil {
		return nil, nil, err
	}
	l = NewList(points)
	for _, p := range l.All {
		l.Length = max(l.Length, len(p.ID)) // IDs that are not listed may begin with the same characters.
	}
	return l, prefixes, nil
}

// Find returns the restore point that word names: with an ID, its beginning, the name of a machine, or `latest`.
func Find(ctx context.Context, r *repository.Repository, word string) (*repository.RestorePoint, error) {
	l, prefixes, err := ReadNamed(ctx, r, word)
	if err != nil {
		return nil, err
	}
	return l.Find(prefixes[0])
}

// NewList returns restore points with short IDs that differ.
func NewList(points *mover.Points) *List {
	l := &List{Points: points, Length: shortID}
	for l.hasAmbiguousIDs() {
		l.Length++
	}
	return l
}

// hasAmbiguousIDs reports whether two restore points have the same short ID.
func (l *List) hasAmbiguousIDs() bool {
	seen := map[string]bool{}
	for _, p := range l.All {
		if seen[l.ShortID(p.ID)] && len(p.ID) > l.Length {
			return true
		}
		seen[l.ShortID(p.ID)] = true
	}
	return false
}

// ShortID returns the beginning of an ID, with which no other restore point's ID begins.
func (l *List) ShortID(id string) string { return id[:min(l.Length, len(id))] }

// WarnUnreadable reports restore points that cannot be read, when that does not fail the command.
func (l *List) WarnUnreadable(w io.Writer) {
	if l.Unreadable == nil {
		return
	}
	for line := range strings.SplitSeq(l.Unreadable.Error(), "\n") {
		fmt.Fprintf(w, "warning: %s\n", human.Line(line))
	}
}

// items is the form of restore points for programs.
type items struct {
	Items []*repository.RestorePoint `json:"items"`
}

// Print writes restore points in a form for programs.
func Print(p *output.Printer, points []*repository.RestorePoint) error {
	if p.Form != output.AsName {
		return p.PrintData(items{Items: append([]*repository.RestorePoint{}, points...)})
	}
	for _, point := range points {
		fmt.Fprintln(p.Out, point.ID)
	}
	return nil
}

// NewTable makes a table of restore points. wide asks for every column, and for whole IDs and names.
func NewTable(l *List, points []*repository.RestorePoint, wide bool) *output.Table {
	t := &output.Table{Header: []string{"TIME", "ID", "HOST", "NAME", "DISKS", "SIZE", "CHANGED", "TYPE", "PINS"}}
	if wide {
		t.Header = append(t.Header, "USER", "PARENT", "SNAPSHOT ID")
	}
	for _, p := range points {
		id, name, disks := l.ShortID(p.ID), human.Short(mover.HistoryName(p.Source), maxCell), human.Short(strings.Join(mover.DiskNames(p), ","), maxCell)
		if wide {
			id, name, disks = p.ID, mover.HistoryName(p.Source), strings.Join(mover.DiskNames(p), ",")
		}
		row := []string{
			output.FormatTime(p.Time), id, p.Source.Host, name, disks, human.Bytes(p.DiskBytes()),
			human.Bytes(ChangedBytes(p)), FormatType(p), strings.Join(p.Pins, ","),
		}
		if wide {
			row = append(row, p.Source.User, strings.Join(parentIDs(p), ","), SnapshotID(p))
		}
		t.Add(row...)
	}
	return t
}

// SnapshotID returns what a DataDownload calls a restore point of a cluster's volume; "" for others, which none restores.
func SnapshotID(p *repository.RestorePoint) string {
	namespace, claim, ok := strings.Cut(mover.HistoryName(p.Source), "/")
	if p.Source.Host != datamove.HistoryHost || p.Source.User != datamove.HistoryUser || !ok || claim == "" {
		return ""
	}
	id := datamove.SnapshotID{Form: datamove.Disk, Point: p.ID, Namespace: namespace}
	if p.Files != nil {
		id.Form = datamove.Files
	}
	if _, err := datamove.ParseSnapshotID(id.String()); err != nil {
		return ""
	}
	return id.String()
}

// ChangedBytes returns how much changed in all disks since their parents; of files, how much was read.
func ChangedBytes(p *repository.RestorePoint) (n int64) {
	for _, d := range p.Disks {
		n += d.Stats.ChangedBytes
	}
	if p.Files != nil {
		n += p.Files.Stats.ReadBytes
	}
	return n
}

func parentIDs(p *repository.RestorePoint) (ids []string) {
	if p.Files != nil && p.Files.Parent != "" {
		ids = append(ids, p.Files.Parent)
	}
	for _, d := range p.Disks {
		if d.Parent != "" && !slices.Contains(ids, d.Parent) {
			ids = append(ids, d.Parent)
		}
	}
	return ids
}

// FormatFullReason returns the reason why a disk is full for a table. Without change tracking, which most disks do not
// have, every backup is full: that is no fault, and its reason must not look like one.
func FormatFullReason(reason repository.FullReason) string {
	if reason == repository.FullNoChanges {
		return "not tracked"
	}
	return string(reason)
}

// FormatType returns Incremental if all disks, or the files, are incremental, and Full with the reasons if none is.
func FormatType(p *repository.RestorePoint) string {
	switch {
	case p.Files != nil && p.Files.FullReason == "":
		return "Incremental"
	case p.Files != nil:
		return fmt.Sprintf("Full (%s)", FormatFullReason(p.Files.FullReason))
	case len(p.Disks) == 0:
		return "Unreadable"
	}
	var reasons []string
	full := 0
	for _, d := range p.Disks {
		if d.FullReason == "" {
			continue
		}
		full++
		if reason := FormatFullReason(d.FullReason); !slices.Contains(reasons, reason) {
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

// Identity holds what identifies a restore point.
type Identity struct {
	ID     string            `json:"id"`
	Source repository.Source `json:"source"`
	Time   time.Time         `json:"time"`
}

// Identify returns what identifies a restore point.
func Identify(p *repository.RestorePoint) Identity {
	return Identity{ID: p.ID, Source: p.Source, Time: p.Time}
}

// PrintBackup writes what a backup has made.
func PrintBackup(w io.Writer, p *repository.RestorePoint) error {
	t := &output.Table{Header: []string{"DISK", "SIZE", "READ", "CHANGED", "TYPE"}}
	for _, d := range p.Disks {
		kind := "Incremental"
		if d.FullReason != "" {
			kind = fmt.Sprintf("Full (%s)", FormatFullReason(d.FullReason))
		}
		t.Add(d.Name, human.Bytes(d.Bytes), human.Bytes(d.Stats.ReadBytes), human.Bytes(d.Stats.ChangedBytes), kind)
	}
	fmt.Fprintf(w, "restore point %s of %s at %s\n", p.ID, human.Line(mover.HistoryName(p.Source)), output.FormatTime(p.Time))
	return t.Write(w)
}
