package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// InstallSnapshotKinds installs the kinds of snapshot.storage.k8s.io from the module of their client, and SnapshotMetadataService of
// cbt.storage.k8s.io without its schema.
func (c *Cluster) InstallSnapshotKinds(ctx context.Context) error {
	directory, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	if err != nil {
		return fmt.Errorf("find the kinds of snapshots: %w", err)
	}
	var files []string
	for _, kind := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		file := filepath.Join(strings.TrimSpace(string(directory)), "config", "crd", "snapshot.storage.k8s.io_"+kind+".yaml")
		if _, err := os.Stat(file); err != nil {
			return err
		}
		files = append(files, file)
	}
	metadata := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "snapshotmetadataservices.cbt.storage.k8s.io", Annotations: map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4082"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "cbt.storage.k8s.io", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "snapshotmetadataservices", Singular: "snapshotmetadataservice", Kind: "SnapshotMetadataService", ListKind: "SnapshotMetadataServiceList",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
			}},
		},
	}
	_, err = envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: files, CRDs: []*apiextensionsv1.CustomResourceDefinition{metadata}})
	return err
}
