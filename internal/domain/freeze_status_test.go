package domain

import (
	"errors"
	"testing"
)

func TestSaysCount(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{`{"return":0}`: 0, `{"return":3}`: 3, `{}`: -1, `{"return":"frozen"}`: -1, ``: -1} {
		got, err := saysCount(answer)
		if refused := errors.Is(err, ErrAgent); refused != (want < 0) || (!refused && got != want) {
			t.Errorf("%s: %d, %v", answer, got, err)
		}
	}
}
