package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
)

func named(name, version string) backupv1.VirtualMachineBackup {
	return backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

func listOf(version string, items ...backupv1.VirtualMachineBackup) func(*backupv1.VirtualMachineBackupList) error {
	return func(l *backupv1.VirtualMachineBackupList) error {
		l.ResourceVersion, l.Items = version, items
		return nil
	}
}

func listFails(err error) func(*backupv1.VirtualMachineBackupList) error {
	return func(*backupv1.VirtualMachineBackupList) error { return err }
}

func event(kind watch.EventType, name, version string) watch.Event {
	b := named(name, version)
	return watch.Event{Type: kind, Object: &b}
}

// shownBy follows the list of s until enough lists were shown, and returns their objects and the number of warnings.
func shownBy(t *testing.T, s *server, enough int) (shown []string, warnings int, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = cluster.FollowList(ctx, s, &backupv1.VirtualMachineBackupList{}, nil, func(list client.ObjectList) error {
		var names []string
		for _, b := range list.(*backupv1.VirtualMachineBackupList).Items {
			names = append(names, b.Name+b.ResourceVersion)
		}
		if shown = append(shown, strings.Join(names, " ")); len(shown) == enough {
			cancel()
		}
		return nil
	}, func(error) { warnings++ })
	return shown, warnings, err
}

// What was shown is not shown again after a break, and what changed meanwhile is.
func TestFollowList_outlivesTheServer(t *testing.T) {
	t.Parallel()
	s := &server{
		lists: []func(*backupv1.VirtualMachineBackupList) error{
			listOf("5", named("a", "1"), named("b", "2")), listFails(down), listFails(down), listOf("9", named("a", "1"), named("b", "6"), named("c", "8")),
		},
		watches: [][]watch.Event{
			{event(watch.Modified, "b", "6"), event(watch.Deleted, "a", "7"), event(watch.Added, "a", "1"), {Type: watch.Error, Object: &metav1.Status{}}},
		},
	}
	shown, warnings, err := shownBy(t, s, 5)
	if diff := cmp.Diff([]string{"a1 b2", "b6", "a7", "a1", "c8"}, shown); diff != "" || !errors.Is(err, context.Canceled) {
		t.Error(err, diff)
	}
	if warnings != 1 {
		t.Errorf("%d warnings for one break", warnings)
	}
	if len(s.got) == 0 || s.got[0] != "5" {
		t.Errorf("the watch did not start from the list: %v", s.got)
	}
}

// Nobody waits for a cluster that was never there, or for what the user may not see.
func TestFollowList_givesUpWhereNoRetryHelps(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(backups, "", errors.New("no"))
	for name, lists := range map[string][]func(*backupv1.VirtualMachineBackupList) error{
		"no server":         {listFails(down)},
		"forbidden":         {listFails(forbidden)},
		"forbidden in time": {listOf("1"), listFails(forbidden)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := shownBy(t, &server{lists: lists}, 9); !errors.Is(err, down) && !apierrors.IsForbidden(err) {
				t.Errorf("%v", err)
			}
		})
	}
}
