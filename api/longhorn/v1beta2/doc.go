// Package v1beta2 holds the longhorn.io/v1beta2 types of the store: BackingImage, Node, InstanceManager, Volume and
// Replica, with the fields of Longhorn 1.11's that Varve has.
//
// +kubebuilder:object:generate=true
// +groupName=longhorn.io
package v1beta2
