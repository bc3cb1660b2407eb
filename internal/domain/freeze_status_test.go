package domain

import (
	"errors"
	"testing"
)

// An answer that cannot be read is no "thawed": a guest that is taken for thawed stays frozen.
func TestSaysFrozen(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{`{"return":"frozen"}`: true, `{"return":"thawed"}`: false} {
		if got, err := saysFrozen(answer); err != nil || got != want {
			t.Errorf("%s: %v, %v", answer, got, err)
		}
	}
	for _, answer := range []string{`{}`, `{"return":0}`, `{"return":"FROZEN"}`, ``} {
		if got, err := saysFrozen(answer); !errors.Is(err, ErrAgent) {
			t.Errorf("%s: %v, %v", answer, got, err)
		}
	}
}

func TestSaysCount(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{`{"return":0}`: 0, `{"return":3}`: 3, `{}`: -1, `{"return":"frozen"}`: -1, ``: -1} {
		got, err := saysCount(answer)
		if refused := errors.Is(err, ErrAgent); refused != (want < 0) || (!refused && got != want) {
			t.Errorf("%s: %d, %v", answer, got, err)
		}
	}
}
