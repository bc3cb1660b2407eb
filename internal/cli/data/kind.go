package data

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// kind is what differs between the commands of uploads and those of downloads.
type kind struct {
	// noun is "upload" or "download".
	noun string
	// wideHelp completes the help of -o wide with what this kind alone has.
	wideHelp string
	object   func() client.Object
	newList  func() client.ObjectList
	// groups has tables of every column show the group, and kinds has them begin with the kind.
	groups, kinds bool
}

var (
	uploads = kind{
		noun: "upload", wideHelp: " Of the disk of a running machine, it adds the group.", groups: true,
		object: func() client.Object { return &velerov2.DataUpload{} }, newList: func() client.ObjectList { return &velerov2.DataUploadList{} },
	}
	downloads = kind{
		noun: "download", object: func() client.Object { return &velerov2.DataDownload{} }, newList: func() client.ObjectList { return &velerov2.DataDownloadList{} },
	}
	// both is for tables alone.
	both = kind{groups: true, kinds: true}
)

// get reads an object in the selected namespace.
func (k kind) get(ctx context.Context, c *cluster.Client, name string) (*movement, error) {
	object := k.object()
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	if err := c.Get(ctx, key, object); err != nil {
		return nil, fmt.Errorf("get %s %s: %w", k.noun, key, err)
	}
	return newMovement(object), nil
}

// untilEnded waits until an object has completed, and calls seen with each of its states.
func (k kind) untilEnded(s *resource.Session, c *cluster.Client, object client.Object, seen func(*movement)) resource.WaitFunc {
	uid, name := object.GetUID(), object.GetName()
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(object), k.object(), k.newList(), func(o client.Object, exists bool) (bool, error) {
			if !exists || o.GetUID() != uid {
				return false, failure.New("", "%s %s was deleted while it ran", k.noun, name)
			}
			m := newMovement(o)
			show(m.report())
			seen(m)
			switch {
			case m.phase == velerov2.PhaseCompleted:
				return true, nil
			case m.phase.Ended():
				return false, failure.New(s.CommandHint("data "+k.noun+" describe "+name)+" shows its pod and events", "%s %s: %s: %s", k.noun, name, m.phase, m.message)
			default:
				return false, nil
			}
		})
	}
}

// newTable makes a table of uploads or downloads, with the rates since an earlier table of theirs. wide asks for every column.
func (k kind) newTable(s *resource.Session, measured *rates, list client.ObjectList, wide bool) (*output.Table, error) {
	t := &output.Table{Header: []string{"NAME", "VOLUME", "PHASE", "DONE", "RATE", "LEFT", "TOOK", "LOCATION", "NODE", "AGE"}}
	if k.kinds {
		t.Header = append([]string{"KIND"}, t.Header...)
	}
	if wide {
		if k.groups {
			t.Header = append(t.Header, "GROUP")
		}
		t.Header = append(t.Header, "DATA MOVER", "SNAPSHOT ID", "MESSAGE")
	}
	now := s.Now()
	err := meta.EachListItem(list, func(item runtime.Object) error {
		m := newMovement(item)
		rate, left := measured.measure(now, m)
		row := []string{m.object.GetName(), m.source(), string(m.phase), m.amount(), rate, left, m.took(now), m.location, m.node, human.Age(now, m.object.GetCreationTimestamp().Time)}
		if k.kinds {
			row = append([]string{string(m.kind)}, row...)
		}
		if wide {
			if k.groups {
				row = append(row, m.group())
			}
			row = append(row, m.dataMover(), m.snapshotID, m.message)
		}
		t.Add(row...)
		return nil
	})
	return t, err
}

// sortByAge sorts a list, the oldest first.
func sortByAge(list client.ObjectList) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return // not a list: nothing to sort
	}
	slices.SortStableFunc(items, func(a, b runtime.Object) int {
		x, y := newMovement(a).object, newMovement(b).object
		if c := x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time); c != 0 {
			return c
		}
		return strings.Compare(x.GetNamespace()+"/"+x.GetName(), y.GetNamespace()+"/"+y.GetName())
	})
	_ = meta.SetList(list, items) // the same items
}
