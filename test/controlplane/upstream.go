package controlplane

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// VeleroCRDs returns the directories with the custom resource definitions of the Velero that Varve is compatible with.
func VeleroCRDs(ctx context.Context) ([]string, error) {
	module, err := moduleDirectory(ctx, "github.com/vmware-tanzu/velero")
	if err != nil {
		return nil, err
	}
	crds := filepath.Join(module, "config", "crd")
	return []string{filepath.Join(crds, "v1", "bases"), filepath.Join(crds, "v2alpha1", "bases")}, nil
}

// SnapshotCRDs returns the files with the custom resource definitions of VolumeSnapshots, their contents and classes.
func SnapshotCRDs(ctx context.Context) ([]string, error) {
	module, err := moduleDirectory(ctx, "github.com/kubernetes-csi/external-snapshotter/client/v8")
	if err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(module, "config", "crd", "snapshot.storage.k8s.io_*.yaml"))
}

// InstallCRDs installs custom resource definitions, also over others of the same names, and waits until they are served.
// Other tests that share the control plane see them as well.
func (c *Cluster) InstallCRDs(paths []string) error {
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true})
	return err
}

// moduleDirectory returns where the source of a module is that go.mod requires.
func moduleDirectory(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return "", fmt.Errorf("the source of %s is not in the module cache: run go mod download", module)
	}
	return dir, nil
}
