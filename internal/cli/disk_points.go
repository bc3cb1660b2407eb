package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// shortID is how much of an ID tables show, unless two begin with the same characters.
	shortID = 12
	// maxCell is how many columns of a name a table shows unless it is wide.
	maxCell = 40
	// leastID is how much of an ID the user must give.
	leastID = 4
)

// pointList are restore points of a repository, oldest first.
type pointList struct {
	points []*repository.RestorePoint
	// unreadable is the error that names the restore points that cannot be read, or nil.
	unreadable error
	length     int
}

// listPoints lists what can be read. Unreadable restore points are no error.
func listPoints(ctx context.Context, r *repository.Repository) (*pointList, error) {
	points, err := r.List(ctx, nil)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	return newPointList(points, err), nil
}

// listNamed lists the restore points whose IDs begin with one of the prefixes, and shows their whole IDs.
func listNamed(ctx context.Context, r *repository.Repository, prefixes ...string) (*pointList, error) {
	for _, prefix := range prefixes {
		if err := validPrefix(prefix); err != nil {
			return nil, err
		}
	}
	points, err := r.ListMatching(ctx, prefixes...)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	l := newPointList(points, err)
	for _, p := range points {
		l.length = max(l.length, len(p.ID)) // IDs that are not listed may begin with the same characters.
	}
	return l, nil
}

// validPrefix refuses a prefix that is too short for the beginning of an ID.
func validPrefix(prefix string) error {
	if len(prefix) < leastID {
		return usage("restore point %q: give at least %d characters of its ID", prefix, leastID)
	}
	return nil
}

// findPoint returns the restore point whose ID begins with prefix.
func findPoint(ctx context.Context, r *repository.Repository, prefix string) (*repository.RestorePoint, error) {
	l, err := listNamed(ctx, r, prefix)
	if err != nil {
		return nil, err
	}
	return l.find(prefix)
}

func newPointList(points []*repository.RestorePoint, unreadable error) *pointList {
	slices.SortStableFunc(points, func(a, b *repository.RestorePoint) int {
		if n := a.Time.Compare(b.Time); n != 0 {
			return n
		}
		return a.Source.Compare(b.Source)
	})
	l := &pointList{points: points, unreadable: unreadable, length: shortID}
	for l.ambiguous() {
		l.length++
	}
	return l
}

// ambiguous reports whether two restore points have the same short ID.
func (l *pointList) ambiguous() bool {
	seen := map[string]bool{}
	for _, p := range l.points {
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
	if l.unreadable == nil {
		return
	}
	for line := range strings.SplitSeq(l.unreadable.Error(), "\n") {
		fmt.Fprintf(w, "warning: %s\n", human.Line(line))
	}
}

// find returns the restore point whose ID begins with prefix.
func (l *pointList) find(prefix string) (*repository.RestorePoint, error) {
	if err := validPrefix(prefix); err != nil {
		return nil, err
	}
	var found []*repository.RestorePoint
	for _, p := range l.points {
		if strings.HasPrefix(p.ID, prefix) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("restore point %s: %w", prefix, cmp.Or(l.unreadable, errclass.NotFound))
	}
	var ids []string
	for _, p := range found {
		ids = append(ids, p.ID)
	}
	return nil, usage("restore point %s: the IDs of %d begin like this: %s", prefix, len(found), strings.Join(ids, ", "))
}

// findAll returns the restore points that prefixes name, without duplicates.
func (l *pointList) findAll(prefixes []string) ([]*repository.RestorePoint, error) {
	var out []*repository.RestorePoint
	var failures []error
	for _, prefix := range prefixes {
		p, err := l.find(prefix)
		if err != nil {
			failures = append(failures, err)
		} else if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out, errors.Join(failures...)
}

// pointItems is the form of restore points for programs.
type pointItems struct {
	Items []*repository.RestorePoint `json:"items"`
}

// printPoints writes restore points in a form for programs.
func printPoints(w io.Writer, form string, points []*repository.RestorePoint) error {
	if form != asName {
		return printData(w, form, pointItems{Items: append([]*repository.RestorePoint{}, points...)})
	}
	for _, p := range points {
		fmt.Fprintln(w, p.ID)
	}
	return nil
}

func pointTable(l *pointList, points []*repository.RestorePoint, wide bool) *table {
	t := &table{header: []string{"TIME", "ID", "HOST", "NAME", "DISKS", "SIZE", "CHANGED", "TYPE", "PINS"}}
	if wide {
		t.header = append(t.header, "USER", "PARENT")
	}
	for _, p := range points {
		id, name, disks := l.short(p.ID), human.Short(sourceName(p.Source), maxCell), human.Short(strings.Join(diskNames(p), ","), maxCell)
		if wide {
			id, name, disks = p.ID, sourceName(p.Source), strings.Join(diskNames(p), ",")
		}
		row := []string{
			timeText(p.Time), id, p.Source.Host, name, disks, human.Bytes(p.DiskBytes()),
			human.Bytes(changedBytes(p)), pointType(p), strings.Join(p.Pins, ","),
		}
		if wide {
			row = append(row, p.Source.User, strings.Join(parents(p), ","))
		}
		t.add(row...)
	}
	return t
}

func diskNames(p *repository.RestorePoint) (names []string) {
	for _, d := range p.Disks {
		names = append(names, d.Name)
	}
	return names
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
		if reason := string(d.FullReason); !slices.Contains(reasons, reason) {
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
