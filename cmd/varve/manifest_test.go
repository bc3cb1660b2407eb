package main

import (
	"io"
	"os"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// The manifests pass only flags that the servers have.
func TestManifestArguments(t *testing.T) {
	t.Parallel()
	for path, command := range map[string]*cobra.Command{
		"../../deploy/core/controller.yaml": controllerCommand(func(string) string { return "" }),
		"../../deploy/base/handler.yaml":    handlerCommand(func(string) string { return "" }),
		"../../deploy/store/store.yaml":     storeCommand(func(string) string { return "" }),
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// A Deployment and a DaemonSet have the same template.
		var workload appsv1.Deployment
		if err := yaml.Unmarshal(text, &workload); err != nil {
			t.Fatal(err)
		}
		c := workload.Spec.Template.Spec.Containers[0]
		if len(c.Command) != 2 || c.Command[1] != command.Name() {
			t.Errorf("%s: command %v", path, c.Command)
		}
		if err := command.ParseFlags(c.Args); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestServers_readTheirEnvironment(t *testing.T) {
	t.Parallel()
	env := func(name string) string {
		return map[string]string{"NODE_NAME": "n1", "POD_NAMESPACE": "elsewhere", "KUBECONFIG": "/k"}[name]
	}
	c := handlerCommand(env)
	for flag, want := range map[string]string{"node-name": "n1", "namespace": "elsewhere", "kubeconfig": "/k"} {
		if got := c.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s = %q, want %q", flag, got, want)
		}
	}
}

func TestServers_refuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	s := server{level: "loud"}
	if _, err := s.newLogger(io.Discard); err == nil {
		t.Error("a log level that does not exist was accepted")
	}
}
