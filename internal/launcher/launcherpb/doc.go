// Package launcherpb is the gRPC interface of the launcher, generated from launcher.proto.
package launcherpb
