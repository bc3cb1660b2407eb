package main

import "testing"

func TestChartVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.2.3":               "1.2.3",
		"1.2.3-rc.1":           "1.2.3-rc.1",
		"v1.2.3-4-gabc1234":    "1.2.3-4-gabc1234",
		"0123456-dirty":        "0.0.0-g0123456-dirty",
		"unknown":              "0.0.0-gunknown",
		"v1.2":                 "0.0.0-gv1-2",
		"v1.2.3-4-gabc-dirty":  "1.2.3-4-gabc-dirty",
		"release/7_with words": "0.0.0-grelease-7-with-words",
	} {
		if got := chartVersion(version); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}
