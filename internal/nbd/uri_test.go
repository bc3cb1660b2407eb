package nbd

import (
	"strings"
	"testing"
)

func TestParseURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]Target{
		"nbd://example.com:1234/disk":                       {Network: "tcp", Address: "example.com:1234", Export: "disk", ServerName: "example.com"},
		"nbd://example.com":                                 {Network: "tcp", Address: "example.com:10809", ServerName: "example.com"},
		"nbds://[::1]:1/":                                   {Network: "tcp", Address: "[::1]:1", TLS: true, ServerName: "::1"},
		"nbd://example.com//disk":                           {Network: "tcp", Address: "example.com:10809", Export: "/disk", ServerName: "example.com"},
		"nbd://example.com/hello%20world":                   {Network: "tcp", Address: "example.com:10809", Export: "hello world", ServerName: "example.com"},
		"nbd+unix:///disk?socket=/run/s":                    {Network: "unix", Address: "/run/s", Export: "disk"},
		"nbd+unix://?socket=/run/s":                         {Network: "unix", Address: "/run/s"},
		"nbds+unix:///a/b?socket=%2Frun%2Fs&tls-hostname=h": {Network: "unix", Address: "/run/s", Export: "a/b", TLS: true, ServerName: "h"},
		"nbds://h/?tls-hostname=other":                      {Network: "tcp", Address: "h:10809", TLS: true, ServerName: "other"},
	} {
		got, err := ParseURI(uri)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", uri, got, err)
		}
		if again, err := ParseURI(got.URI()); err != nil || again != want {
			t.Errorf("%s, written %s: %+v, %v", uri, got.URI(), again, err)
		}
	}
	for uri, word := range map[string]string{
		"http://h/": "scheme", "": "scheme", "nbd:///disk": "host", "nbd:disk": "//", "nbd+unix:///": "socket", "nbd+unix://h/?socket=/s": "host",
		"nbd://h/?socket=/s": "socket", "nbd://u@h/": "user", "nbd://h/#f": "#", "nbd://h/?tls-psk-file=x": "tls-psk-file", "nbd://h:x/": "port", "nbd://h:99999/": "port", "nBd://::": "host",
		"nbd+unix:///?socket=": "socket", "nbd+unix:///?socket=/a&socket=/b": "socket", "nbd://h/%00": "export name", "nbd://h/?%zz": "query",
		"nbd://h/" + strings.Repeat("a", 4097): "export name",
	} {
		if got, err := ParseURI(uri); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %+v, %v: the error does not name %q", uri, got, err, word)
		}
	}
}
