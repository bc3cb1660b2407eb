package human_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/cli/human"
)

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		-1: "-", 0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB",
		1<<20 - 1: "1 MiB", 1 << 20: "1 MiB", 1288490189: "1.2 GiB", 3 << 30: "3 GiB", 1 << 40: "1 TiB", 1<<63 - 1: "8 EiB",
	} {
		if got := human.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

// Anything longer than "1023.9 KiB" would break the alignment of every table.
func TestBytesStaysShort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Min(0).Draw(t, "n")
		if got := human.Bytes(n); len(got) > len("1023.9 KiB") {
			t.Fatalf("Bytes(%d) = %q", n, got)
		}
	})
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for ago, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 200 * time.Second: "3m20s", 5 * time.Minute: "5m",
		90 * time.Minute: "90m", 4*time.Hour + 5*time.Minute: "4h5m", 26 * time.Hour: "26h", 3*day + 2*time.Hour: "3d2h",
		100 * day: "100d", 800 * day: "2y70d",
	} {
		if got := human.Age(now, now.Add(-ago)); got != want {
			t.Errorf("Age(%v) = %q, want %q", ago, got, want)
		}
	}
	if got := human.Age(now, time.Time{}); got != "-" {
		t.Errorf("Age(zero) = %q", got)
	}
}

func TestTook(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-1: "-", 0: "0 ms", 80 * time.Millisecond: "80 ms", 2100 * time.Millisecond: "2.1s", 59 * time.Second: "59.0s", 200 * time.Second: "3m20s",
	} {
		if got := human.Took(d); got != want {
			t.Errorf("Took(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestLineHidesControlCharacters(t *testing.T) {
	t.Parallel()
	if got, want := human.Line("a\x1b[31mred\r\nb\u202e\t"), "a [31mred  b"; got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 restore points", 1: "1 restore point", 2: "2 restore points"} {
		if got := human.Count(n, "restore point"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// A character may take two columns.
func TestShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abc…", "日本": "日本", "日本語": "日…"} {
		if got := human.Short(text, 4); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
