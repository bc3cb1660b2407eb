package vetted

import "testing"

func TestIsVetted(t *testing.T) { t.Errorf("%d", "not a number") }
