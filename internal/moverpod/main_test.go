//go:build !controlplane

package moverpod

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	registerOutages()
	if text := os.Getenv(childVariable); text != "" {
		os.Exit(runChild(text))
	}
	goleak.VerifyTestMain(m)
}
