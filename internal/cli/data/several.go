package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
)

// createUploads creates all uploads or none: if one cannot be created, it deletes those that it has made.
func createUploads(ctx context.Context, c *cluster.Client, all []*velerov2.DataUpload) error {
	for i, u := range all {
		err := c.Create(ctx, u)
		switch {
		case err == nil:
			continue
		case len(all) == 1:
			return fmt.Errorf("create upload: %w", err)
		case i == 0:
			return fmt.Errorf("create upload %s: %w", u.Name, err)
		}
		return undoUploads(context.WithoutCancel(ctx), c, all[:i], fmt.Errorf("create upload %s: %w", u.Name, err))
	}
	return nil
}

// undoUploads deletes uploads, and returns why with what became of them.
func undoUploads(ctx context.Context, c *cluster.Client, made []*velerov2.DataUpload, why error) error {
	var deleted []string
	var failures []error
	for _, u := range made {
		if err := c.Delete(ctx, u, client.Preconditions{UID: &u.UID}); client.IgnoreNotFound(err) != nil {
			failures = append(failures, fmt.Errorf("delete upload %s again: %w", u.Name, err))
			continue
		}
		deleted = append(deleted, u.Name)
	}
	if len(deleted) > 0 {
		why = fmt.Errorf("%w; deleted again: %s", why, strings.Join(deleted, ", "))
	}
	return errors.Join(append([]error{why}, failures...)...)
}

// waitForUploads waits until all uploads have ended, and stores their last states in them. One that fails does not stop the others.
func waitForUploads(ctx context.Context, s *resource.Session, c *cluster.Client, w *resource.Waiting, all []*velerov2.DataUpload) error {
	wait := func(u *velerov2.DataUpload) resource.WaitFunc {
		return uploads.untilEnded(s, c, u, func(m *movement) { m.object.(*velerov2.DataUpload).DeepCopyInto(u) })
	}
	if len(all) == 1 {
		u := all[0]
		return w.Run(ctx, s, "upload "+u.Name+" has completed", "data upload describe "+u.Name, wait(u))
	}
	goal := fmt.Sprintf("the %s have completed", human.Count(len(all), "upload"))
	list := "data upload list -l " + datamove.LabelGroup + "=" + all[0].Labels[datamove.LabelGroup]
	return w.RunEach(ctx, s, goal, list, func(ctx context.Context, show func(progress.Report)) error {
		failures := make([]error, len(all))
		var group errgroup.Group
		for i, u := range all {
			group.Go(func() error {
				failures[i] = wait(u)(ctx, show)
				return nil
			})
		}
		_ = group.Wait() // the errors are in failures, all of them
		return errors.Join(failures...)
	})
}

// printUploads prints the result of a create that succeeded.
func printUploads(w io.Writer, form string, all []*velerov2.DataUpload, waited bool) error {
	switch {
	case form != "" && len(all) == 1:
		return output.PrintObject(w, form, all[0])
	case form != "":
		list := &velerov2.DataUploadList{}
		for _, u := range all {
			list.Items = append(list.Items, *u)
		}
		return output.PrintObject(w, form, list)
	case !waited:
		return nil
	}
	for _, u := range all {
		m := newMovement(u)
		text := fmt.Sprintf("upload %s completed: %s, %s new or changed, took %s", u.Name, human.Bytes(u.Status.Progress.TotalBytes), human.Bytes(u.Status.IncrementalBytes), human.Or(m.took(time.Time{})))
		if why := whyFull(u); why != "" {
			text += ", full because " + why
		}
		if _, err := fmt.Fprintln(w, human.Line(text+", snapshot ID "+u.Status.SnapshotID)); err != nil {
			return err
		}
	}
	return nil
}
