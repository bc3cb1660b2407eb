package many

import (
	"fmt"
	"testing"
)

func TestMany(t *testing.T) {
	for i := range 9 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { t.Error("fails") })
	}
}
