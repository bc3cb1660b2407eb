package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"

	// Its module has the kind.
	_ "github.com/kubernetes-csi/external-snapshot-metadata/client/apis/snapshotmetadataservice/v1alpha1"
)

// InstallSnapshotKinds installs the kinds of snapshot.storage.k8s.io and of cbt.storage.k8s.io from the modules of
// their clients.
func (c *Cluster) InstallSnapshotKinds(ctx context.Context) error {
	files, err := SnapshotCRDs(ctx)
	if err != nil {
		return fmt.Errorf("find the kinds of snapshots: %w", err)
	}
	metadata, err := SnapshotMetadataCRDs(ctx)
	if err != nil {
		return err
	}
	return c.InstallCRDs(append(files, metadata))
}

// SnapshotMetadataCRDs returns the directory with the custom resource definition of SnapshotMetadataServices.
func SnapshotMetadataCRDs(ctx context.Context) (string, error) {
	module, err := moduleDirectory(ctx, "github.com/kubernetes-csi/external-snapshot-metadata/client")
	return filepath.Join(module, "config", "crd"), err
}

// AcceptExportsOfSnapshots has the API server accept VirtualMachineExports of VirtualMachineSnapshots, as KubeVirt's
// definition of the kind does.
func (c *Cluster) AcceptExportsOfSnapshots(tb testing.TB) {
	tb.Helper()
	admin := c.Client(tb, Admin)
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("virtualmachineexports.export.kubevirt.io")
	path := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "source", "x-kubernetes-validations"}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := admin.Get(tb.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
			return err
		}
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			return err
		}
		for _, v := range versions {
			if version, ok := v.(map[string]any); ok {
				unstructured.RemoveNestedField(version, path...)
			}
		}
		if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
			return err
		}
		return admin.Update(tb.Context(), crd)
	})
	if err != nil {
		tb.Fatalf("accept exports of snapshots: %v", err)
	}
	Eventually(tb, func() error {
		return admin.Create(tb.Context(), &exportv1.VirtualMachineExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: "of-a-snapshot"},
			Spec: exportv1.VirtualMachineExportSpec{Source: corev1.TypedLocalObjectReference{
				APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: exportv1.SourceSnapshot, Name: "s",
			}},
		}, client.DryRunAll)
	})
}
