#!/bin/sh
# Copies the CRDs that a cluster with Velero and CSI snapshots has into DIRECTORY/crds. peers.sh runs it in this module.
# Usage: files.sh DIRECTORY
set -eu

crds=$1/crds
mkdir -p "$crds"
velero=$(go list -m -f '{{.Dir}}' github.com/vmware-tanzu/velero)
snapshotter=$(go list -m -f '{{.Dir}}' github.com/kubernetes-csi/external-snapshotter/client/v8)
cp "$velero"/config/crd/v1/bases/*.yaml "$velero"/config/crd/v2alpha1/bases/*.yaml "$crds"
for kind in volumesnapshotclasses volumesnapshotcontents volumesnapshots; do
	cp "$snapshotter/config/crd/snapshot.storage.k8s.io_$kind.yaml" "$crds"
done
chmod 644 "$crds"/* # the module cache is read-only
