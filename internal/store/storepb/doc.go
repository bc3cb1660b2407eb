// Package storepb is the gRPC interface between the stores of a cluster, generated from store.proto.
package storepb
