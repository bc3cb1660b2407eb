package cluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FollowList calls show with a list of all objects that options select, and again with each one that changes or is
// deleted, in lists of the kind of empty. A server that goes away and comes back does not end it: warn is told once, and
// show then gets what has changed meanwhile, but not what was deleted meanwhile. The first list must succeed. FollowList
// ends with the context, whose cause it returns, and with errors, also of show, that no retry can fix.
func FollowList(ctx context.Context, c client.WithWatch, empty client.ObjectList, options []client.ListOption, show func(client.ObjectList) error, warn func(error)) error {
	f := &listFollower{client: c, empty: empty, show: show, shown: map[types.UID]string{}}
	f.options.ApplyOptions(options)
	warned := false
	for {
		err := f.followOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (!f.began || !isTransient(err)):
			return err
		case err != nil && !warned:
			warn(fmt.Errorf("the watch was interrupted, trying again: %w", err))
		}
		warned = err != nil
		if err := pauseFor(ctx, retryAfter); err != nil {
			return err
		}
	}
}

// listFollower is what one FollowList knows.
type listFollower struct {
	client  client.WithWatch
	empty   client.ObjectList
	options client.ListOptions
	show    func(client.ObjectList) error
	// shown has the version of each object that was shown last.
	shown map[types.UID]string
	// began says that there was a list.
	began bool
}

// followOnce lists the objects, then follows one watch to its end.
func (f *listFollower) followOnce(ctx context.Context) error {
	list, err := f.newList()
	if err != nil {
		return err
	}
	if err := f.client.List(ctx, list, &f.options); err != nil {
		return err
	}
	version := list.GetResourceVersion()
	if err := f.showChanged(list); err != nil {
		return err
	}
	options := f.options
	options.Raw = &metav1.ListOptions{ResourceVersion: version}
	kind, err := f.newList()
	if err != nil {
		return err
	}
	w, err := f.client.Watch(ctx, kind, &options)
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return nil // such as an expired version: list again
		}
		if err := f.showEvent(event); err != nil {
			return err
		}
	}
	return nil
}

func (f *listFollower) newList() (client.ObjectList, error) {
	list, ok := f.empty.DeepCopyObject().(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("copy %T: another type came out", f.empty)
	}
	return list, nil
}

// showChanged shows the whole list at first, and later those of its objects that have changed since they were shown.
func (f *listFollower) showChanged(list client.ObjectList) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	shown := map[types.UID]string{}
	var changed []runtime.Object
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return fmt.Errorf("read the list: %w", err)
		}
		shown[object.GetUID()] = object.GetResourceVersion()
		if f.shown[object.GetUID()] != object.GetResourceVersion() {
			changed = append(changed, item)
		}
	}
	if f.began && len(changed) == 0 {
		f.shown = shown
		return nil
	}
	if err := meta.SetList(list, changed); err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	if err := f.show(list); err != nil {
		return err
	}
	f.began, f.shown = true, shown
	return nil
}

// showEvent shows the object of an event, as kubectl does also when it is deleted.
func (f *listFollower) showEvent(event watch.Event) error {
	if event.Type == watch.Bookmark {
		return nil
	}
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	list, err := f.newList()
	if err != nil {
		return err
	}
	if err := meta.SetList(list, []runtime.Object{event.Object}); err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	if err := f.show(list); err != nil {
		return err
	}
	if event.Type == watch.Deleted {
		delete(f.shown, object.GetUID())
		return nil
	}
	f.shown[object.GetUID()] = object.GetResourceVersion()
	return nil
}
