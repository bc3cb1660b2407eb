package podspec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNames_areDistinctLabels(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	exports := []string{"a", "a-b", "a.b", "1", strings.Repeat("x", 50), strings.Repeat("x", 51), strings.Repeat("x", 253), strings.Repeat("x", 252) + "y", strings.Repeat("a.", 126) + "a"}
	for _, export := range exports {
		for _, name := range []string{Service(export), CertificateSecret(export), TokenSecret(export), ManifestsSecret(export)} {
			if msgs := validation.IsDNS1035Label(name); len(msgs) > 0 {
				t.Errorf("%q: %v", name, msgs)
			}
			if other, ok := seen[name]; ok {
				t.Errorf("%q is of %q and of %q", name, other, export)
			}
			seen[name] = export
		}
		if msgs := validation.IsDNS1123Label(Pod(export)); len(msgs) > 0 {
			t.Errorf("%q: %v", Pod(export), msgs)
		}
	}
	// What upstream's clients and people expect.
	if got := []string{Pod("web"), Service("web"), TokenSecret("web")}; !cmp.Equal(got, []string{"virt-export-web", "virt-export-web", "export-token-web"}) {
		t.Errorf("%v", got)
	}
	if got := ServiceHosts("ns", "web")[0]; got != "virt-export-web.ns.svc" {
		t.Errorf("host %s", got)
	}
}

// What is applied elsewhere has the names that upstream gives it, however long the export's is.
func TestAppliedNames_areValid(t *testing.T) {
	t.Parallel()
	for _, export := range []string{"web", "a.b", strings.Repeat("x", 253)} {
		for _, name := range []string{HeaderSecret(export), CAConfigMap(export)} {
			if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
				t.Errorf("%q: %v", name, msgs)
			}
		}
	}
	if got := []string{HeaderSecret("web"), CAConfigMap("web")}; !cmp.Equal(got, []string{"header-secret-web", "export-ca-cm-web"}) {
		t.Errorf("%v", got)
	}
}

func TestConfig_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"volumes": {Namespace: "ns", Name: "e", UID: "1", Volumes: []Volume{{"root", ClaimFile("root")}, {"data", ClaimDevice("data")}}},
		"machine": {Namespace: "ns", Name: "e", UID: "1", Manifests: true, Volumes: []Volume{{"root", ClaimFile("root")}}},
		"backup":  {Namespace: "ns", Name: "e", UID: "1", Backup: &Backup{Name: "b", UID: "2", Volumes: []string{"root"}}},
	} {
		got, err := Decode(c.Encode())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.Version = ConfigVersion
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecode_refusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	const backup = `"backup":{"name":"b","uid":"1","volumes":["root"]}`
	if _, err := Decode(`{"version":1,` + backup + `}`); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing":                 ``,
		"two objects":             `{"version":1,` + backup + `}{}`,
		"another version":         `{"version":2,` + backup + `}`,
		"an unknown field":        `{"version":1,"anonymous":true,` + backup + `}`,
		"no source":               `{"version":1}`,
		"two sources":             `{"version":1,"volumes":[{"name":"a","path":"/a"}],` + backup + `}`,
		"a backup without a UID":  `{"version":1,"backup":{"name":"b","uid":"","volumes":["root"]}}`,
		"a backup of nothing":     `{"version":1,"backup":{"name":"b","uid":"1","volumes":[]}}`,
		"a backup's manifests":    `{"version":1,"manifests":true,` + backup + `}`,
		"a volume twice":          `{"version":1,"backup":{"name":"b","uid":"1","volumes":["a","a"]}}`,
		"a volume above":          `{"version":1,"backup":{"name":"b","uid":"1","volumes":[".."]}}`,
		"a volume with a slash":   `{"version":1,"volumes":[{"name":"a/b","path":"/a"}]}`,
		"a volume without a name": `{"version":1,"volumes":[{"name":"","path":"/a"}]}`,
		"a relative path":         `{"version":1,"volumes":[{"name":"a","path":"a"}]}`,
	} {
		if _, err := Decode(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPaths_areUpstreams(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		RawPath("root"):  "/volumes/root/disk.img",
		GzipPath("root"): "/volumes/root/disk.img.gz",
		DataPath("root"): "/exports/root/data",
		MapPath("root"):  "/exports/root/map",
		ReadinessPath:    "/exportready",

		AllManifestsPath(InternalLink):   "/internal/manifests/all",
		SecretManifestPath(ExternalLink): "/external/manifests/secret",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
