package backupstate

import "testing"

func TestMoved_isShortAndRounded(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]string{
		-1: "", 0: "", 1: "1", 1023: "1023", 1024: "1Ki", 1536: "1.5Ki", 10 << 10: "10Ki", 10<<10 - 1: "10Ki", 91 << 20: "91Mi", 95_500_000: "91Mi",
		1<<20 - 1: "1Mi", 1_288_490_189: "1.2Gi", 5 << 40: "5Ti", 1<<63 - 1: "8Ei",
	} {
		if got := Moved(bytes); got != want {
			t.Errorf("%d: %q, want %q", bytes, got, want)
		}
	}
}
