package velero

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/test/wait"
)

// The phases of backups and restores that tests wait for. A backup has others in between, which it leaves by itself.
const (
	InProgress       = "InProgress"
	WaitingForMover  = "WaitingForPluginOperations"
	Completed        = "Completed"
	PartiallyFailed  = "PartiallyFailed"
	Failed           = "Failed"
	FailedValidation = "FailedValidation"
)

// final are the phases that nothing leaves.
var final = []string{Completed, PartiallyFailed, Failed, FailedValidation}

// Status is what backups and restores have in common.
type Status struct {
	Phase            string   `json:"phase"`
	FailureReason    string   `json:"failureReason"`
	ValidationErrors []string `json:"validationErrors"`
	Errors           int      `json:"errors"`
	Warnings         int      `json:"warnings"`
	// The operations of data movers.
	BackupItemOperationsAttempted  int `json:"backupItemOperationsAttempted"`
	BackupItemOperationsCompleted  int `json:"backupItemOperationsCompleted"`
	BackupItemOperationsFailed     int `json:"backupItemOperationsFailed"`
	RestoreItemOperationsAttempted int `json:"restoreItemOperationsAttempted"`
	RestoreItemOperationsCompleted int `json:"restoreItemOperationsCompleted"`
	RestoreItemOperationsFailed    int `json:"restoreItemOperationsFailed"`
}

// WaitForBackup waits until a backup has a phase, and returns its status. It ends the test with what Velero says about the backup when the limit
// has passed, and at once when the backup has ended in another phase.
func (s *Server) WaitForBackup(tb testing.TB, name, phase string, limit time.Duration) Status {
	tb.Helper()
	return s.waitForPhase(tb, "Backup", name, phase, limit)
}

// WaitForRestore is WaitForBackup for a restore.
func (s *Server) WaitForRestore(tb testing.TB, name, phase string, limit time.Duration) Status {
	tb.Helper()
	return s.waitForPhase(tb, "Restore", name, phase, limit)
}

func (s *Server) waitForPhase(tb testing.TB, kind, name, phase string, limit time.Duration) Status {
	tb.Helper()
	status, err := s.awaitPhase(context.WithoutCancel(tb.Context()), kind, name, phase, limit)
	if err != nil {
		tb.Fatal(err)
	}
	return status
}

func (s *Server) awaitPhase(ctx context.Context, kind, name, phase string, limit time.Duration) (status Status, err error) {
	err = wait.For(ctx, limit, fmt.Sprintf("%s %s to be %s", kind, name, phase), func(ctx context.Context) (bool, string, error) {
		var err error
		if status, err = s.status(ctx, kind, name); err != nil {
			return false, "", err
		}
		if status.Phase != phase && slices.Contains(final, status.Phase) {
			return false, "", fmt.Errorf("it ended: %+v", status)
		}
		return status.Phase == phase, fmt.Sprintf("%+v", status), nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.explain(ctx, strings.ToLower(kind), name))
	}
	return status, err
}

// status reads the status of a backup or a restore.
func (s *Server) status(ctx context.Context, kind, name string) (Status, error) {
	o := s.object(kind, name)
	if err := s.cluster.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return Status{}, err
	}
	var status Status
	fields, _, err := unstructured.NestedMap(o.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &status)
	}
	return status, err
}

// explain returns everything that Velero says about a backup or a restore: its description, its log, which exists only when it
// has ended, and the objects of its data mover.
func (s *Server) explain(ctx context.Context, kind, name string) string {
	var text strings.Builder
	for _, arguments := range [][]string{{kind, "describe", name, "--details"}, {kind, "logs", name}} {
		output, err := s.Command(ctx, arguments...)
		if err != nil {
			output = err.Error()
		}
		fmt.Fprintf(&text, "velero %s:\n%s\n", strings.Join(arguments, " "), output)
	}
	for _, movement := range []string{"DataUpload", "DataDownload"} {
		objects, err := s.list(ctx, movement, "v2alpha1")
		if err != nil {
			fmt.Fprintf(&text, "list %ss: %v\n", movement, err)
			continue
		}
		for _, o := range objects {
			fmt.Fprintf(&text, "%s %s: spec %v, status %v\n", movement, o.GetName(), o.Object["spec"], o.Object["status"])
		}
	}
	return text.String()
}

// DeleteBackup deletes a backup with all that Velero stored of it, as `velero backup delete NAME --confirm` does, and waits until it is gone.
// What a data mover stored may take longer.
func (s *Server) DeleteBackup(tb testing.TB, name string, limit time.Duration) {
	tb.Helper()
	s.Run(tb, "backup", "delete", name, "--confirm")
	ctx := context.WithoutCancel(tb.Context())
	err := wait.For(ctx, limit, "the deletion of Backup "+name, func(ctx context.Context) (bool, string, error) {
		backup := s.object("Backup", name)
		switch err := s.cluster.Get(ctx, client.ObjectKeyFromObject(backup), backup); {
		case apierrors.IsNotFound(err):
			return true, "", nil
		case err != nil:
			return false, "", err
		}
		seen, err := s.refusals(ctx, name)
		return false, seen, err
	})
	if err != nil {
		tb.Fatalf("%v\n%s", err, s.explain(ctx, "backup", name))
	}
}

// refusals returns what the requests to delete a backup have come to. It fails when one has ended with errors: the backup stays.
func (s *Server) refusals(ctx context.Context, backup string) (seen string, err error) {
	requests, err := s.list(ctx, "DeleteBackupRequest", "v1")
	if err != nil {
		return "", err
	}
	for _, r := range requests {
		name, _, _ := unstructured.NestedString(r.Object, "spec", "backupName")
		phase, _, _ := unstructured.NestedString(r.Object, "status", "phase")
		errs, _, _ := unstructured.NestedStringSlice(r.Object, "status", "errors")
		if name != backup {
			continue
		}
		if phase == "Processed" && len(errs) > 0 {
			return "", errors.New(strings.Join(errs, "; "))
		}
		seen = fmt.Sprintf("request %s has phase %q", r.GetName(), phase)
	}
	return seen, nil
}

// list returns all objects of one of Velero's kinds in its namespace.
func (s *Server) list(ctx context.Context, kind, version string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	gvk := s.object(kind, "").GroupVersionKind()
	gvk.Version, gvk.Kind = version, kind+"List"
	list.SetGroupVersionKind(gvk)
	err := s.cluster.List(ctx, list, client.InNamespace(s.Namespace))
	return list.Items, err
}

// removeAll deletes the objects of one of Velero's kinds, and waits until they are gone.
func (s *Server) removeAll(ctx context.Context, tb testing.TB, kind string, limit time.Duration) {
	tb.Helper()
	objects, err := s.list(ctx, kind, "v1")
	if err != nil {
		tb.Fatalf("remove Velero: %v", err)
	}
	for _, o := range objects {
		if err := s.cluster.Delete(ctx, &o); client.IgnoreNotFound(err) != nil {
			tb.Fatalf("remove Velero: %v", err)
		}
		s.waitGone(ctx, tb, &o, limit)
	}
}

// waitGone waits until an object that was deleted is gone.
func (s *Server) waitGone(ctx context.Context, tb testing.TB, o client.Object, limit time.Duration) {
	tb.Helper()
	what := fmt.Sprintf("the end of %T %s", o, o.GetName())
	err := wait.For(ctx, limit, what, func(ctx context.Context) (bool, string, error) {
		err := s.cluster.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, fmt.Sprintf("finalizers %v", o.GetFinalizers()), err
	})
	if err != nil {
		tb.Fatalf("remove Velero: %v", err)
	}
}
