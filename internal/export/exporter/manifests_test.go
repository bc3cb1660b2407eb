package exporter

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
)

func TestRun_servesManifestsOfAMachine(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	config := podspec.Config{Name: "e", Manifests: true, Volumes: []podspec.Volume{{Name: "web", Path: disk}}}
	p := start(t, config)
	write := func(link podspec.Link, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(p.files.Manifests, podspec.ManifestsKey(link)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inside, outside := podspec.AllManifestsPath(podspec.InternalLink), podspec.AllManifestsPath(podspec.ExternalLink)
	if answer, _ := p.get(http.MethodGet, inside); answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("manifests that are not mounted: %s", answer.Status)
	}
	write(podspec.InternalLink, `{"items":[{"kind":"A","a":1},{"kind":"B"}]}`)
	write(podspec.ExternalLink, "")
	for accept, want := range map[string]string{
		"application/yaml": "a: 1\nkind: A\n---\nkind: B\n---\n",
		"":                 "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n        {\n            \"kind\": \"A\",\n            \"a\": 1\n        },\n        {\n            \"kind\": \"B\"\n        }\n    ],\n    \"kind\": \"List\",\n    \"metadata\": {}\n}",
	} {
		answer, body := p.get(http.MethodGet, inside, "Accept", accept)
		if diff := cmp.Diff(want, string(body)); diff != "" || answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/") {
			t.Errorf("%q: %s, %v: %s", accept, answer.Status, answer.Header, diff)
		}
	}
	if answer, _ := p.get(http.MethodGet, outside); answer.StatusCode != http.StatusNotFound {
		t.Errorf("manifests of an address that there is not: %s", answer.Status)
	}
	// The address of the proxy comes later.
	write(podspec.ExternalLink, `{"items":[{"kind":"C"}]}`)
	if _, body := p.get(http.MethodGet, outside, "Accept", "application/yaml"); string(body) != "kind: C\n---\n" {
		t.Errorf("%s", body)
	}
	for _, link := range []podspec.Link{podspec.InternalLink, podspec.ExternalLink} {
		_, body := p.get(http.MethodGet, podspec.SecretManifestPath(link), "Accept", "application/yaml")
		want := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: header-secret-e\nstringData:\n  token: x-kubevirt-export-token:the clients'\n---\n"
		if diff := cmp.Diff(want, string(body)); diff != "" {
			t.Error(diff)
		}
	}
	for path, want := range map[string]int{inside: http.StatusUnauthorized, podspec.SecretManifestPath(podspec.InternalLink): http.StatusUnauthorized} {
		if answer, body := p.get(http.MethodGet, path, server.TokenHeader, "another"); answer.StatusCode != want || strings.Contains(string(body), "clients'") {
			t.Errorf("%s with a wrong token: %s %q", path, answer.Status, body)
		}
	}
	if answer, _ := p.get(http.MethodPost, inside); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", answer.Status)
	}

	config.Manifests = false
	p = start(t, config)
	if answer, _ := p.get(http.MethodGet, podspec.SecretManifestPath(podspec.InternalLink)); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a claim's manifests: %s", answer.Status)
	}
}
