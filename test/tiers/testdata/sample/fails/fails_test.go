package fails

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestPasses(t *testing.T) {
	t.Log("not printed")
	fmt.Println("printed to standard output")
	fmt.Fprintln(os.Stderr, "printed to standard error")
}

func TestFails(t *testing.T) {
	t.Log("first line\nsecond line")
	t.Run("subtest", func(t *testing.T) {
		t.Log("in the subtest")
		t.Run("of a subtest", func(t *testing.T) { t.Error("first line\nsecond line") })
	})
	t.Run("a/name/with/slashes", func(t *testing.T) { t.Error("wrong") })
	t.Run("passes", func(t *testing.T) { t.Log("not printed") })
	t.Error("after the subtests")
}

func TestSkips(t *testing.T) { t.Skip("not printed") }

func TestParallel(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			t.Log("begins")
			time.Sleep(time.Duration(i) * 50 * time.Millisecond)
			if i == 1 {
				t.Errorf("%d is wrong", i)
			}
			fmt.Print("no newline") // the same in each: their order is a matter of time
		})
	}
}

func Example() {
	fmt.Println("one")
	// Output: another
}
