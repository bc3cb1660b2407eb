package controlplane

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var errLost = errors.New("the answer is lost")

// losses are the answers that LoseAnswers has lost.
type losses struct {
	mu sync.Mutex
	// lost has what was lost, by verb, kind and content.
	lost map[[sha256.Size]byte]bool
	// verbs counts them.
	verbs map[string]int
}

// LoseAnswers makes a manager's client lose the answers to a third of the writes: the API server carries the write out,
// but the caller gets an error, which leaves things as a controller does that dies right after the write. Which ones are
// lost depends on names and UIDs, so it differs from run to run. None is lost twice. More of them would make the delays of
// failures long, which a controller that starts again does not have. The test logs how many were lost, and fails if none
// was.
func LoseAnswers(tb testing.TB) func(*ctrl.Options) {
	tb.Helper()
	l := &losses{lost: map[[sha256.Size]byte]bool{}, verbs: map[string]int{}}
	tb.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		tb.Logf("answers that were lost: %v", l.verbs)
		if len(l.verbs) == 0 {
			tb.Error("no answer was lost: the manager writes with another client")
		}
	})
	return func(o *ctrl.Options) { o.NewClient = l.newClient }
}

// newClient is what makes the manager's client.
func (l *losses) newClient(config *rest.Config, o client.Options) (client.Client, error) {
	c, err := client.NewWithWatch(config, o)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			key := fmt.Sprintf("create %T %s", obj, client.ObjectKeyFromObject(obj))
			return l.loseOnce(c.Create(ctx, obj, opts...), "create", key)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			key := fmt.Sprintf("delete %T %s %s", obj, client.ObjectKeyFromObject(obj), obj.GetUID())
			return l.loseOnce(c.Delete(ctx, obj, opts...), "delete", key)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			key := fmt.Sprintf("update %T %s %s", obj, obj.GetUID(), obj.GetResourceVersion())
			return l.loseOnce(c.Update(ctx, obj, opts...), "update", key)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			key, err := patchKey(obj, patch)
			if err != nil {
				return err
			}
			return l.loseOnce(c.Patch(ctx, obj, patch, opts...), "patch", key)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			key, err := patchKey(obj, patch)
			if err != nil {
				return err
			}
			return l.loseOnce(c.SubResource(sub).Patch(ctx, obj, patch, opts...), "patch of "+sub, sub+" "+key)
		},
	}), nil
}

func patchKey(obj client.Object, patch client.Patch) (string, error) {
	body, err := patch.Data(obj)
	return fmt.Sprintf("patch %T %s %s", obj, obj.GetUID(), body), err
}

// loseOnce returns the error of a write, or else errLost if such a one is to be lost and was not lost yet.
func (l *losses) loseOnce(err error, verb, key string) error {
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(key))
	l.mu.Lock()
	defer l.mu.Unlock()
	if sum[0]%3 != 0 || l.lost[sum] {
		return nil
	}
	l.lost[sum] = true
	l.verbs[verb]++
	return errLost
}
