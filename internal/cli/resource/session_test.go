package resource

import (
	"os"
	"path/filepath"
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

// Objects that are all in one namespace are found there, unless the user selects another one.
func TestConnect_selectsTheNamespace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	const config = `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],
"contexts":[{"name":"x","context":{"cluster":"c","namespace":"shop"}}],"current-context":"x"}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ home, selected, want string }{
		{"", "", "shop"}, {"", "app", "app"}, {"varve", "", "varve"}, {"varve", "app", "app"},
	} {
		s := NewSessionIn(&session.Session{}, c.home)
		*s.flags.KubeConfig, *s.flags.Namespace = path, c.selected
		connected, err := s.Connect()
		if err != nil {
			t.Fatal(err)
		}
		if connected.Namespace != c.want {
			t.Errorf("of %q, with -n %q: %s, want %s", c.home, c.selected, connected.Namespace, c.want)
		}
	}
}
