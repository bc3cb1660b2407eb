package exporter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
)

// The endpoints of manifests, as they stand in metrics.
const (
	manifestEndpoint = "manifest"
	secretEndpoint   = "manifest-secret"
)

// serveManifests adds the manifests of a machine to a server.
func serveManifests(s *server.Server, config podspec.Config, files Files, token func() ([]byte, error)) {
	for _, link := range []podspec.Link{podspec.InternalLink, podspec.ExternalLink} {
		all, secret := podspec.AllManifestsPath(link), podspec.SecretManifestPath(link)
		s.Handle(all, manifestEndpoint, exactly(all, func(w http.ResponseWriter, r *http.Request) {
			text, err := os.ReadFile(filepath.Join(files.Manifests, podspec.ManifestsKey(link)))
			if err == nil && len(text) == 0 {
				http.Error(w, "the export has no such address", http.StatusNotFound)
				return
			}
			var items []json.RawMessage
			if err == nil {
				items, err = decodeItems(text)
			}
			answerManifests(w, r, items, err)
		}))
		s.Handle(secret, secretEndpoint, exactly(secret, func(w http.ResponseWriter, r *http.Request) {
			item, err := headerSecret(config.Name, token)
			answerManifests(w, r, []json.RawMessage{item}, err)
		}))
	}
}

func decodeItems(list []byte) ([]json.RawMessage, error) {
	var decoded struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(list, &decoded); err != nil {
		return nil, fmt.Errorf("decode the manifests: %w", err)
	}
	return decoded.Items, nil
}

// headerSecret returns the Secret that CDI sends as a header when it fetches a disk.
func headerSecret(export string, token func() ([]byte, error)) (json.RawMessage, error) {
	secret, err := token()
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	return json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata":   map[string]any{"name": podspec.HeaderSecret(export)},
		"stringData": map[string]string{podspec.TokenKey: podspec.TokenHeader + ":" + string(secret)},
	})
}

// answerManifests sends objects as a List in JSON, or, to a client that accepts it, as documents in YAML.
func answerManifests(w http.ResponseWriter, r *http.Request, items []json.RawMessage, err error) {
	contentType, encode := "application/json", encodeJSON
	if strings.Contains(r.Header.Get("Accept"), "yaml") {
		contentType, encode = "application/yaml", encodeYAML
	}
	var text []byte
	if err == nil {
		text, err = encode(items)
	}
	if err != nil {
		http.Error(w, "the manifests cannot be read", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	w.Write(text) //nolint:errcheck // nobody is left to tell
}

func encodeJSON(items []json.RawMessage) ([]byte, error) {
	return json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": struct{}{}, "items": items}, "", "    ")
}

func encodeYAML(items []json.RawMessage) ([]byte, error) {
	var all bytes.Buffer
	for _, item := range items {
		text, err := yaml.JSONToYAML(item)
		if err != nil {
			return nil, fmt.Errorf("encode a manifest: %w", err)
		}
		all.Write(text)
		all.WriteString("---\n")
	}
	return all.Bytes(), nil
}
