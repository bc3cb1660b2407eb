package main

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/layout"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"--log-level=debug", "--libvirtd=/x"}, io.Discard)
	if err != nil || o.logLevel != slog.LevelDebug || o.libvirtd != "/x" || o.socket != layout.Socket || o.worker {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"copy"}, {"--nonsense"}, {"--log-level=loud"}} {
		if _, err := parseOptions(args, io.Discard); err == nil {
			t.Errorf("%v were accepted", args)
		}
	}
	if _, err := parseOptions([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
}

func TestTermination_fitsWhatTheKubeletReads(t *testing.T) {
	t.Parallel()
	o := options{terminationLog: filepath.Join(t.TempDir(), "log")}
	writeTermination(o, slog.New(slog.DiscardHandler), termination{End: "CRASHED", Message: strings.Repeat("x", 10000)})
	data, err := os.ReadFile(o.terminationLog)
	if err != nil || len(data) > 4096 || !strings.HasPrefix(string(data), `{"end":"CRASHED","message":"xxx`) || !strings.HasSuffix(string(data), "\"}\n") {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
