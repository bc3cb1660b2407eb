package cluster_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server plays an API server: each read takes the next answer, each watch sends its events and closes.
type server struct {
	client.WithWatch
	reads   []func(*backupv1.VirtualMachineBackup) error
	watches [][]watch.Event
	got     []string
	// lists are the answers to lists, each used once.
	lists []func(*backupv1.VirtualMachineBackupList) error
}

func (s *server) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if len(s.lists) == 0 {
		return errors.New("no list is left")
	}
	answer := s.lists[0]
	s.lists = s.lists[1:]
	return answer(list.(*backupv1.VirtualMachineBackupList))
}

func (s *server) Get(ctx context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	read := s.reads[0]
	if len(s.reads) > 1 {
		s.reads = s.reads[1:]
	}
	return read(o.(*backupv1.VirtualMachineBackup))
}

func (s *server) Watch(_ context.Context, _ client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	all := &client.ListOptions{}
	all.ApplyOptions(options)
	s.got = append(s.got, all.AsListOptions().ResourceVersion)
	w := watch.NewFakeWithChanSize(8, false)
	if len(s.watches) > 0 {
		for _, e := range s.watches[0] {
			w.Action(e.Type, e.Object)
		}
		s.watches = s.watches[1:]
	}
	w.Stop()
	return w, nil
}

func backup(phase backupv1.BackupPhase, version string) *backupv1.VirtualMachineBackup {
	b := &backupv1.VirtualMachineBackup{}
	b.Name, b.ResourceVersion, b.Status.Phase = "b", version, phase
	return b
}

func is(phase backupv1.BackupPhase, version string) func(*backupv1.VirtualMachineBackup) error {
	return func(o *backupv1.VirtualMachineBackup) error {
		backup(phase, version).DeepCopyInto(o)
		return nil
	}
}

func fails(err error) func(*backupv1.VirtualMachineBackup) error {
	return func(*backupv1.VirtualMachineBackup) error { return err }
}

var (
	backups = schema.GroupResource{Group: "backup.kubevirt.io", Resource: "virtualmachinebackups"}
	down    = &url.Error{Op: "Get", URL: "https://server", Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
)

// phases follows a backup until it is Done, and returns the phases that it saw.
func phases(ctx context.Context, s *server) (seen []backupv1.BackupPhase, err error) {
	err = cluster.Follow(ctx, s, client.ObjectKey{Namespace: "n", Name: "b"}, &backupv1.VirtualMachineBackup{}, &backupv1.VirtualMachineBackupList{},
		func(b *backupv1.VirtualMachineBackup, exists bool) (bool, error) {
			if !exists {
				seen = append(seen, "gone")
				return false, nil
			}
			seen = append(seen, b.Status.Phase)
			return b.Status.Phase == backupv1.BackupDone, nil
		})
	return seen, err
}

func TestFollowOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := &server{
		reads: []func(*backupv1.VirtualMachineBackup) error{
			fails(down), is(backupv1.BackupStarting, "7"), fails(apierrors.NewServiceUnavailable("starting")), is(backupv1.BackupDone, "9"),
		},
		watches: [][]watch.Event{{{Type: watch.Modified, Object: backup(backupv1.BackupCopying, "8")}}},
	}
	seen, err := phases(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]backupv1.BackupPhase{backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupDone}, seen); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"7"}, s.got); diff != "" {
		t.Errorf("the watch did not start from what was read: %s", diff)
	}
}

func TestFollowSeesDeletionAndCreation(t *testing.T) {
	t.Parallel()
	s := &server{
		reads: []func(*backupv1.VirtualMachineBackup) error{fails(apierrors.NewNotFound(backups, "b"))},
		watches: [][]watch.Event{{
			{Type: watch.Added, Object: backup(backupv1.BackupPending, "1")},
			{Type: watch.Deleted, Object: backup(backupv1.BackupPending, "2")},
			{Type: watch.Added, Object: backup(backupv1.BackupDone, "3")},
		}},
	}
	seen, err := phases(t.Context(), s)
	if diff := cmp.Diff([]backupv1.BackupPhase{"gone", backupv1.BackupPending, "gone", backupv1.BackupDone}, seen); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestFollowGivesUpWhereNoRetryHelps(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(backups, "b", errors.New("no"))
	if _, err := phases(t.Context(), &server{reads: []func(*backupv1.VirtualMachineBackup) error{fails(forbidden)}}); !apierrors.IsForbidden(err) {
		t.Errorf("err = %v", err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cause := errors.New("too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	if _, err := phases(ctx, &server{reads: []func(*backupv1.VirtualMachineBackup) error{fails(down)}}); !errors.Is(err, cause) {
		t.Errorf("err = %v", err)
	}
}

// The check's error is final, even if it looks like one that a retry could fix.
func TestFollowReturnsTheVerdict(t *testing.T) {
	t.Parallel()
	s := &server{reads: []func(*backupv1.VirtualMachineBackup) error{is(backupv1.BackupFailed, "1")}}
	err := cluster.Follow(t.Context(), s, client.ObjectKey{Name: "b"}, &backupv1.VirtualMachineBackup{}, &backupv1.VirtualMachineBackupList{},
		func(*backupv1.VirtualMachineBackup, bool) (bool, error) { return false, down })
	if !errors.Is(err, down) {
		t.Errorf("err = %v", err)
	}
}
