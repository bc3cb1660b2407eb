// Package compat tests that other programs can read what Varve serves: kubevirt.io/v1 and export.kubevirt.io/v1beta1 are
// subsets of the released KubeVirt API, backup.kubevirt.io/v1alpha1 has the names of VEP 25, and velero.io/v1 and
// velero.io/v2alpha1 have every field of Velero 1.18.
package compat
