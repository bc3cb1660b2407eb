//go:build !libvirt_dlopen

package main

import (
	"context"
	"log/slog"
)

// runWorker reports what is missing: a launcher without libvirt can run nothing. It exists so that `go build ./...`
// works without tags.
func runWorker(_ context.Context, _ options, log *slog.Logger) int {
	log.Error("this varve-launcher was built without libvirt: build it with -tags libvirt_dlopen")
	return 1
}
