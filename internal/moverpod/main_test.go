package moverpod

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/repository/storage"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}
