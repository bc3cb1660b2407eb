package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-only", "image-sync,image-clone", "-rounds", "2", "-io-time", "1s"})
	if err != nil || !o.wantsAny("image-sync") || o.wantsAny("image-create") || o.rounds != 2 || o.ioTime != time.Second ||
		o.dir != o.build {
		t.Errorf("%+v: %v", o, err)
	}
	for _, args := range [][]string{
		{"-only", "image-snc"}, {"-rounds", "0"}, {"-image-mib", "15"}, {"-clones", "0"}, {"-io-time", "1ms"}, {"more"},
	} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestDataRuns_areHalfOfTheImage(t *testing.T) {
	t.Parallel()
	for _, bytes := range []int64{16 * mib, 64 * mib, 2048 * mib} {
		end, data := int64(-1), int64(0)
		for _, e := range dataRuns(bytes) {
			if e.Offset <= end || e.Length <= 0 || e.End() > bytes {
				t.Fatalf("%v after %d in %d", e, end, bytes)
			}
			end, data = e.End(), data+e.Length
		}
		if off := data - bytes/2; off < -blockBytes || off > blockBytes {
			t.Errorf("%d of %d bytes are data", data, bytes)
		}
	}
}

// A result of fio that says nothing is an error, and no rate of 0.
func TestParseFio(t *testing.T) {
	t.Parallel()
	random, whole := access{mode: "randread", bytes: 4 * kib, depth: 16}, access{mode: "write", bytes: 4 * mib, depth: 1}
	const format = `{"jobs": [{"error": 0, "read": {"iops": 250.5}, "write": {"iops": 0}}]}`
	for name, test := range map[string]struct {
		out  string
		a    access
		want float64
	}{
		"IOPS":  {format, random, 250.5},
		"MiB/s": {format, whole, 1002},
	} {
		if got, err := parseFio([]byte(test.out), test.a); err != nil || got != test.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, out := range []string{
		"", "{}", `{"jobs": [{"error": 5, "read": {"iops": 1}}]}`, `{"jobs": [{"read": {"iops": 0}}]}`,
	} {
		if got, err := parseFio([]byte(out), random); err == nil {
			t.Errorf("%s: %v", out, got)
		}
	}
}
