package vm

import (
	"os"
	"testing"

	"github.com/varvebackup/varve/internal/repository/storage"
)

func TestMain(m *testing.M) {
	storage.Register()
	os.Exit(m.Run())
}
