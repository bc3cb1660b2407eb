package hangs

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	fmt.Println("main begins")
	os.Exit(m.Run())
}

func TestHangs(t *testing.T) {
	t.Run("subtest", func(*testing.T) { time.Sleep(time.Hour) })
}
