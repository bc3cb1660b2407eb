package panics

import "testing"

func TestPanics(t *testing.T) {
	t.Log("before")
	panic("boom")
}
