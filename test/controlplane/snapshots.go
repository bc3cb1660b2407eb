package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

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
