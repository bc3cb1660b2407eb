package virtualmachineexport

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/export/authority"
)

var errRefused = errors.New("refused")

// statusRefuser plays an API server that refuses status. Any other write fails the test.
type statusRefuser struct {
	client.Client
	t *testing.T
}

func (c statusRefuser) Status() client.SubResourceWriter { return refusedStatus{} }

func (c statusRefuser) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	c.t.Errorf("%T %s was created", o, o.GetName())
	return nil
}

func (c statusRefuser) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	c.t.Errorf("%T %s was updated", o, o.GetName())
	return nil
}

func (c statusRefuser) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	c.t.Errorf("%T %s was deleted", o, o.GetName())
	return nil
}

type refusedStatus struct{ client.SubResourceWriter }

func (refusedStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errRefused
}

// Clients learn from status which authorities to trust. A certificate of an authority that status does not name yet
// must not be used, and an export that is not served any more must not be said to be.
func TestApply_writesStatusFirst(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*input){
		"a certificate of a new authority": func(in *input) { in.Certificate, in.Service = nil, nil },
		"a claim that is taken":            func(in *input) { volumes(in).claims[0].writers = []string{"vm"} },
	} {
		in := claimInput()
		edit(in)
		r := &reconciler{cached: statusRefuser{t: t}, memory: newMemory()}
		if err := r.applyDecision(t.Context(), in, decide(in), &authority.Issuer{}); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
