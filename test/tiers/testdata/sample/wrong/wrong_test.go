package wrong

import "testing"

// The text is verdict.Mark and verdict.GoldenMark.

func TestData(t *testing.T) {
	t.Run("restored", func(t *testing.T) { t.Error("WRONG DATA: disk root: 1 byte differs") })
}

func TestGolden(t *testing.T) { t.Error("GOLDEN FILE: testdata/v1.json (-golden +got): …") }

func TestParent(t *testing.T) {
	t.Run("subtest", func(t *testing.T) { t.Error("a symptom") })
	t.Error("WRONG DATA: the restored disk")
}
