package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/store/handover"
)

func TestStoreSource(t *testing.T) {
	content := bytes.Repeat([]byte("image "), 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	path, log := filepath.Join(dir, "device"), filepath.Join(dir, "termination-log")
	device, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() })
	if err := device.Truncate(handover.DeviceBytes); err != nil {
		t.Fatal(err)
	}
	run := func(config string) error {
		t.Setenv(handover.SourceVariable, config)
		c := newStoreSourceCommand()
		c.SetArgs([]string{"--device", path, "--scratch", dir, "--termination-log", log})
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		return c.ExecuteContext(t.Context())
	}
	if err := run(`{"type":"magic"}`); err == nil || !strings.Contains(err.Error(), "magic") {
		t.Errorf("error %v", err)
	}
	if line, err := os.ReadFile(log); err != nil || !strings.HasPrefix(string(line), "Invalid: VARVE_IMAGE_SOURCE: type") {
		t.Errorf("termination log %q, %v", line, err)
	}
	if err := run(handover.Source{Type: handover.TypeDownload, URL: server.URL}.String()); err != nil {
		t.Fatal(err)
	}
	record, err := handover.Read(device)
	if err != nil || !record.Complete || record.Bytes != int64(len(content)) {
		t.Errorf("record %+v, %v", record, err)
	}
}
