package v1

import (
	"encoding/json"
	"testing"
	"time"
)

func TestDuration_readsAnyText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Duration{
		`"1h30m0s"`: {Duration: 90 * time.Minute},
		`"1d"`:      {Invalid: "1d"},
		`""`:        {Invalid: `""`},
		`7`:         {Invalid: "7"},
		`null`:      {},
	} {
		got := Duration{Duration: time.Second, Invalid: "before"}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{`"1h30m0s"`, `"1d"`, `""`} {
		var d Duration
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if back, err := json.Marshal(d); err != nil || string(back) != text {
			t.Errorf("%s became %s, %v", text, back, err)
		}
	}
}
