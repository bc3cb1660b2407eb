//go:build !controlplane

package moverpod

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/repository/storage"
)

func TestMain(m *testing.M) {
	storage.Register()
	if text := os.Getenv(childVariable); text != "" {
		os.Exit(runChild(text))
	}
	goleak.VerifyTestMain(m)
}
