//go:build peers

package repository

import "testing"

func TestEveryDamageIsFoundAndNeverRestored(t *testing.T) {
	t.Parallel()
	everyDamage(t, func(damage string, few bool) bool { return few || damage != "bit flipped" && damage != "missing" })
}
