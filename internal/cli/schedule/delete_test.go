package schedule

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/errclass"
)

// newClient returns a client of a cluster with these objects.
func newClient(t *testing.T, calls interceptor.Funcs, objects ...client.Object) *cluster.Client {
	t.Helper()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls)
	return &cluster.Client{Namespace: "app", WithWatch: builder.Build()}
}

// serverWatches makes watches like those of a server: each one begins with what has changed since the object was read,
// is of one object, and ends with its context.
func serverWatches() interceptor.Funcs {
	return interceptor.Funcs{
		Watch: func(
			ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
		) (watch.Interface, error) {
			var o client.ListOptions
			o.ApplyOptions(options)
			name, _ := o.FieldSelector.RequiresExactMatch(metav1.ObjectNameField)
			w, err := c.Watch(ctx, list, options...)
			if err != nil {
				return nil, err
			}
			present := list.DeepCopyObject().(client.ObjectList)
			if err := c.List(ctx, present, client.InNamespace(o.Namespace)); err != nil {
				return nil, err
			}
			items, err := meta.ExtractList(present)
			if err != nil {
				return nil, err
			}
			events := make(chan watch.Event)
			proxy := watch.NewProxyWatcher(events)
			go func() {
				defer close(events)
				defer w.Stop()
				forward := func(e watch.Event) bool {
					if o, ok := e.Object.(client.Object); !ok || o.GetName() != name {
						return true
					}
					select {
					case events <- e:
						return true
					case <-proxy.StopChan():
					case <-ctx.Done():
					}
					return false
				}
				for _, item := range items {
					if !forward(watch.Event{Type: watch.Modified, Object: item}) {
						return
					}
				}
				for {
					select {
					case e, open := <-w.ResultChan():
						if !open || !forward(e) {
							return
						}
					case <-proxy.StopChan():
						return
					case <-ctx.Done():
						return
					}
				}
			}()
			return proxy, nil
		},
	}
}

// inCluster returns a schedule as a cluster has it, whose backups have the label "u".
func inCluster() *harvesterv1.ScheduleVMBackup {
	s, _ := testSchedule()
	s.Namespace, s.Name, s.UID = "app", "nightly", "u"
	s.Spec.VMBackupSpec.Source.Name = "web"
	return s
}

// The schedule is suspended before its backups go. Pinned ones stay, as do those that it did not make.
func TestUntilBackupsGone(t *testing.T) {
	t.Parallel()
	pinned, copied, late := scheduledBackup(2), scheduledBackup(3), scheduledBackup(0)
	pinned.Annotations = map[string]string{harvesterv1.AnnotationPinned: "true"}
	copied.Name = "copy"
	first, second := scheduledBackup(1), scheduledBackup(4)
	calls := interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, _ ...client.PatchOption,
		) error {
			if err := c.Patch(ctx, o, p); err != nil {
				return err
			}
			// The controller has just made a backup.
			seen := o.DeepCopyObject().(*harvesterv1.ScheduleVMBackup)
			seen.Status.Suspended = seen.Spec.Suspend
			if err := c.Create(ctx, late.DeepCopy()); err != nil {
				return err
			}
			return c.Update(ctx, seen)
		},
	}
	s := inCluster()
	c := newClient(t, calls, s, &pinned, &copied, &first, &second)
	o, err := getSchedule(t.Context(), c, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	if err := untilBackupsGone(cmd, c, o)(t.Context(), func(progress.Report) {}); err != nil {
		t.Fatal(err)
	}
	left, err := listBackups(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range left {
		names = append(names, left[i].Name)
	}
	if diff := cmp.Diff([]string{pinned.Name, copied.Name}, names); diff != "" {
		t.Error(diff)
	}
	if strings.Count(out.String(), " deleted\n") != 3 {
		t.Errorf("%q", out.String())
	}
	text := describeKept(offlineSession(), o, left)
	if !strings.HasPrefix(text, "2 backups of schedule nightly stay; pinned: "+pinned.Name+"\n") {
		t.Error(text)
	}
}

// A backup that is pinned while the others go stays, too.
func TestUntilBackupsGone_readsAnewWhatHasChanged(t *testing.T) {
	t.Parallel()
	b, s := scheduledBackup(0), inCluster()
	s.Spec.Suspend, s.Status.Suspended = true, true
	calls := interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			seen := &harvesterv1.VirtualMachineBackup{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), seen); err != nil {
				return err
			}
			seen.Annotations = map[string]string{harvesterv1.AnnotationPinned: "true"}
			if err := c.Update(ctx, seen); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
	}
	c := newClient(t, calls, s, &b)
	if err := untilBackupsGone(&cobra.Command{}, c, s)(t.Context(), func(progress.Report) {}); err != nil {
		t.Fatal(err)
	}
	left, err := listBackups(t.Context(), c, s)
	if err != nil || len(left) != 1 {
		t.Errorf("%d left, %v", len(left), err)
	}
}

// Without its controller, a schedule may make a backup yet: none is deleted.
func TestUntilBackupsGone_waitsForTheController(t *testing.T) {
	t.Parallel()
	b, s := scheduledBackup(0), inCluster()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := newClient(t, serverWatches(), s, &b)
	show := func(r progress.Report) {
		if r.Phase == "Suspending" {
			cancel(failure.ErrTimeout)
		}
	}
	err := untilBackupsGone(&cobra.Command{}, c, s.DeepCopy())(ctx, show)
	left, listErr := listBackups(t.Context(), c, s)
	if failure.Code(err) != errclass.ExitTimeout || listErr != nil || len(left) != 1 {
		t.Errorf("%v, %d left, %v", err, len(left), listErr)
	}
}
