//go:build peers

package repository

import "testing"

func TestDamage_isFoundAndNeverRestoredOfAnyKind(t *testing.T) {
	t.Parallel()
	everyDamage(t, func(damage string, few bool) bool { return few || damage != "bit flipped" && damage != "missing" })
}
