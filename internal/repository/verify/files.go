package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/files"
	"github.com/varvebackup/varve/internal/repository/table"
)

// filesCheck remembers what was found in trees so far. Trees share most of their directories, so each is read once, and for damage the
// trees that have it are walked through again.
type filesCheck struct {
	*tableCheck

	mu sync.Mutex
	// dirs has the directories that were checked, and bad what is wrong with objects.
	dirs map[object.ID]struct{}
	bad  map[object.ID]error
	// unreadable are directories that could not be read.
	unreadable []object.ID
}

func newFilesCheck(v *tableCheck) *filesCheck {
	return &filesCheck{tableCheck: v, dirs: map[object.ID]struct{}{}, bad: map[object.ID]error{}}
}

// checkFiles returns what cannot be restored of a tree.
func (v *filesCheck) checkFiles(ctx context.Context, f *engine.Files) ([]Damage, error) {
	var out []Damage
	err := v.checkAttributes(ctx, f.Attributes)
	if errors.Is(err, errclass.Corrupt) {
		out = append(out, Damage{Disk: engine.FilesName, Err: err})
	} else if err != nil {
		return nil, err
	}
	root := &snapshot.DirEntry{Name: ".", Type: snapshot.EntryTypeDirectory, ObjectID: f.Tree}
	if err := files.Walk(ctx, v.r, root, table.DefaultWorkers, files.Visitor{Visit: v.visit, Unreadable: v.noteUnreadable}); err != nil {
		return nil, err
	}
	for _, id := range v.unreadable {
		if err := v.noteObject(ctx, id); err != nil {
			return nil, err
		}
	}
	v.unreadable = nil
	found, err := v.locateDamage(ctx, root)
	v.countChecked(f.Bytes)
	return append(out, found...), err
}

// checkAttributes reads the attributes.
func (v *filesCheck) checkAttributes(ctx context.Context, id object.ID) error {
	if err := v.checkObject(ctx, id); err != nil {
		return err
	}
	return files.CheckAttributes(ctx, v.r, id)
}

// visit checks the contents of an object, and says whether it is a directory that was not read before.
func (v *filesCheck) visit(ctx context.Context, _ string, e *snapshot.DirEntry) (bool, error) {
	isDir := e.Type == snapshot.EntryTypeDirectory
	if isDir {
		v.mu.Lock()
		_, known := v.dirs[e.ObjectID]
		v.dirs[e.ObjectID] = struct{}{}
		v.mu.Unlock()
		if known {
			return false, nil
		}
	}
	err := v.checkObject(ctx, e.ObjectID)
	if errors.Is(err, errclass.Corrupt) {
		v.note(e.ObjectID, err)
		return false, nil
	}
	return isDir, err
}

func (v *filesCheck) noteUnreadable(_ string, e *snapshot.DirEntry, err error) error {
	if !errors.Is(err, errclass.Corrupt) {
		return err
	}
	v.note(e.ObjectID, fmt.Errorf("the directory: %w", err))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unreadable = append(v.unreadable, e.ObjectID)
	return nil
}

func (v *filesCheck) note(id object.ID, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad[id] = err
}

// checkObject says what is wrong with the first content of an object that is damaged.
func (v *filesCheck) checkObject(ctx context.Context, id object.ID) error {
	err := table.EachContent(ctx, v.r, id, func(id content.ID) error { return v.checkContent(ctx, id, v.tableCheck.bad[id]) })
	if errors.Is(err, errclass.Corrupt) {
		if err := v.noteTable(ctx, id); err != nil {
			return err
		}
	}
	return err
}

// locateDamage returns where in a tree damaged objects are.
func (v *filesCheck) locateDamage(ctx context.Context, root *snapshot.DirEntry) ([]Damage, error) {
	if len(v.bad) == 0 {
		return nil, nil
	}
	var mu sync.Mutex
	var out []Damage
	err := files.Walk(ctx, v.r, root, table.DefaultWorkers, files.Visitor{
		Visit: func(_ context.Context, dir string, e *snapshot.DirEntry) (bool, error) {
			v.mu.Lock()
			wrong := v.bad[e.ObjectID]
			v.mu.Unlock()
			if wrong == nil {
				return e.Type == snapshot.EntryTypeDirectory, nil
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, Damage{Disk: engine.FilesName, File: files.PathOf(dir, e.Name), Err: wrong})
			return false, nil
		},
		Unreadable: v.noteUnreadable,
	})
	slices.SortFunc(out, func(a, b Damage) int { return strings.Compare(a.File, b.File) })
	return out, err
}
