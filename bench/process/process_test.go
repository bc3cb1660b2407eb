package process

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const stat = "77 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 30 0 0 20 0 1 0 12345\n"
	if got, err := parseStat(stat); err != nil || got != 2800*time.Millisecond {
		t.Errorf("%s: %v", got, err)
	}
	for _, bad := range []string{"", "77 (a) S 1 2", strings.Replace(stat, "250", "x", 1)} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if got, err := ProcessorTime(os.Getpid()); err != nil || got < 0 {
		t.Errorf("this process: %s: %v", got, err)
	}
}

func TestParseMemory(t *testing.T) {
	t.Parallel()
	const status = "Name:\tvarve\nVmHWM:\t  204800 kB\nVmRSS:\t    1024 kB\n"
	for field, want := range map[string]int64{"VmHWM:": 200 << 20, "VmRSS:": 1 << 20} {
		if got, err := parseMemory(status, field); err != nil || got != want {
			t.Errorf("%s %d, %v, want %d", field, got, err, want)
		}
	}
	for _, bad := range []string{"", "Name:\tvarve\n", "VmRSS:\tmuch kB\n"} {
		if got, err := parseMemory(bad, "VmRSS:"); err == nil {
			t.Errorf("%q has %d", bad, got)
		}
	}
}
