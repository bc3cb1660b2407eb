package handover_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

// newDevice returns a sparse file of the size of a source's device.
func newDevice(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "device"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(handover.DeviceBytes); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRecord_comesBack(t *testing.T) {
	t.Parallel()
	device := newDevice(t)
	if r, err := handover.Read(device); err != nil || r != (handover.Record{}) {
		t.Fatalf("a blank device has %+v, %v", r, err)
	}
	for _, want := range []handover.Record{
		{Bytes: handover.MaxImageBytes, Done: 1 << 50, Total: 1 << 51},
		{Done: 7, Total: 9, Waits: true},
		{Bytes: 1_000_001, Done: 7, Complete: true, File: "0123456789abcdef0123456789abcdef"},
	} {
		if err := handover.Write(device, want); err != nil {
			t.Fatal(err)
		}
		got, err := handover.Read(device)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestRead_refusesWhatNoSourceWrites(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"not JSON":       "{",
		"another format": `{"format":2,"bytes":1,"complete":true}`,
		"too large":      `{"format":1,"bytes":9223372036854775807,"complete":true}`,
		"negative":       `{"format":1,"bytes":-1}`,
		"a long name":    `{"format":1,"bytes":1,"file":"` + strings.Repeat("f", handover.MaxFileBytes+1) + `"}`,
		"empty":          `{"format":1,"complete":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			device := newDevice(t)
			if _, err := device.WriteAt([]byte(text), handover.DeviceBytes-handover.BlockBytes); err != nil {
				t.Fatal(err)
			}
			if _, err := handover.Read(device); !errors.Is(err, errclass.Corrupt) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// What a pod says that parses strangers' bytes is bounded, and need not be a result.
func TestParseResult(t *testing.T) {
	t.Parallel()
	want := handover.Result{File: "0123456789abcdef"}
	if got := handover.ParseResult(want.String() + "\n"); got != want {
		t.Errorf("%+v", got)
	}
	for _, message := range []string{
		"", "Invalid: the image is empty", `{"file":7}`, handover.Result{File: strings.Repeat("f", 65)}.String(),
	} {
		if got := handover.ParseResult(message); got != (handover.Result{}) {
			t.Errorf("%q is %+v", message, got)
		}
	}
}

func TestRead_failsOnADeviceOfAnotherSize(t *testing.T) {
	t.Parallel()
	device := newDevice(t)
	if err := device.Truncate(handover.DeviceBytes / 2); err != nil {
		t.Fatal(err)
	}
	if _, err := handover.Read(device); !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
}

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		record handover.Record
		want   int
	}{
		{handover.Record{}, 0},
		{handover.Record{Done: 5}, 0},
		{handover.Record{Done: 5, Total: 10}, 50},
		{handover.Record{Done: 20, Total: 10}, 99},
		{handover.Record{Bytes: 1, Complete: true}, 100},
	} {
		if got := c.record.Percent(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.record, got, c.want)
		}
	}
}
