package exits

import (
	"os"
	"testing"
)

func TestExits(t *testing.T) {
	t.Log("before")
	os.Exit(7)
}
