package resource

import (
	"testing"

	"github.com/varvebackup/varve/internal/cli/session"
)

// A hint leads to the object that the command was about: in the same namespace of the same cluster.
func TestCommand_selectsTheSameCluster(t *testing.T) {
	t.Parallel()
	s := NewSession(&session.Session{})
	if got := s.CommandHint("vm describe web"); got != "`varve vm describe web`" {
		t.Errorf("without flags: %s", got)
	}
	*s.flags.Namespace, *s.flags.Context, *s.flags.KubeConfig = "shop", "it's", "/tmp/kube.config"
	if got, want := s.CommandHint("vm describe web"), "`varve vm describe web -n shop --context 'it'\\''s' --kubeconfig /tmp/kube.config`"; got != want {
		t.Errorf("with flags: %s, want %s", got, want)
	}
}
