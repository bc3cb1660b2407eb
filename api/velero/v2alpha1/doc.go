// Package v2alpha1 holds the velero.io/v2alpha1 types DataUpload and DataDownload, as Velero 1.18 serves them. Every field has the
// name, the type and the meaning that it has there. On a cluster with Velero, Velero's own definitions of these kinds stay in
// place, so nothing of Varve's is a field: it travels in dataMoverConfig, labels, annotations and dataMoverResult.
//
// Neither kind has a status subresource. Labels, spec and status share one resource version, and that is the lock with which a node
// takes an object: whoever updates the phase first has it.
//
// +kubebuilder:object:generate=true
// +groupName=velero.io
package v2alpha1
