package handover_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

func TestSource_comesBack(t *testing.T) {
	t.Parallel()
	for _, want := range []handover.Source{
		{Type: handover.TypeDownload, URL: "https://u:p@example.com/disk?q=1&r=<2>", CACertificate: "PEM\n"},
		{Type: handover.TypeUpload, Image: "debian-13.1"},
	} {
		got, err := handover.ParseSource(want.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestParseSource_refuses(t *testing.T) {
	t.Parallel()
	for text, words := range map[string]string{
		"":                            "not the JSON",
		`{"url":"https://secret"}`:    `type ""`,
		`{"type":"restore"}`:          `type "restore"`,
		`{"type":"download"}`:         "url must be",
		`{"type":"download","url":1}`: "not the JSON",
		`{"type":"download","url":"secret:///etc/passwd"}`:      "url must be",
		`{"type":"download","url":"https:///secret"}`:           "url must be",
		`{"type":"download","url":"https://a:secret@%zz/"}`:     "url must be",
		`{"type":"download","url":"ftp://secret.example/disk"}`: "url must be",
	} {
		_, err := handover.ParseSource(text)
		if !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), words) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v: it does not say %q alone", text, err, words)
		}
	}
}
