package passes

import (
	"fmt"
	"testing"
	"time"
)

func TestPasses(t *testing.T) {
	t.Log("not printed")
	fmt.Println("not printed either")
}

func TestSequential(t *testing.T) {
	t.Run("subtest", func(*testing.T) { time.Sleep(20 * time.Millisecond) })
}

func TestParallel(t *testing.T) {
	t.Run("subtest", func(t *testing.T) {
		t.Parallel()
		time.Sleep(50 * time.Millisecond)
	})
}
