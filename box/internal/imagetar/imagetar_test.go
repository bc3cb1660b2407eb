package imagetar

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

func build(t *testing.T, files []File) []byte {
	t.Helper()
	data, err := Build("example/image:1", []string{"/a"}, files)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBuildIsReproducible(t *testing.T) {
	t.Parallel()
	a, b := File{Path: "a", Data: []byte("A"), Mode: 0o755}, File{Path: "b", Data: []byte("B"), Mode: 0o644}
	first := build(t, []File{a, b})
	if !bytes.Equal(first, build(t, []File{b, a})) {
		t.Error(wrongData + "the order of the files changes the image")
	}
	b.Data = []byte("C")
	if bytes.Equal(first, build(t, []File{a, b})) {
		t.Error("other content makes the same image")
	}
}

func TestInspectBuilt(t *testing.T) {
	t.Parallel()
	data := build(t, []File{{Path: "a", Data: []byte("A"), Mode: 0o755}})
	got, err := Inspect(bytes.NewReader(data))
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	if diff := cmp.Diff([]string{"example/image:1"}, got[0].Refs); diff != "" {
		t.Error(diff)
	}
	again, err := Inspect(bytes.NewReader(build(t, []File{{Path: "a", Data: []byte("B"), Mode: 0o755}})))
	if err != nil || again[0].ID == got[0].ID {
		t.Errorf("another image has the same id %s (%v)", got[0].ID, err)
	}
}

// An OCI layout with an index inside the index, as buildx writes it. The expected ID is the config's digest.
func TestInspectOCI(t *testing.T) {
	t.Parallel()
	data, err := writeTar([]File{
		{Path: "oci-layout", Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Path: "./index.json", Data: []byte(`{"manifests":[
			{"digest":"sha256:aa","annotations":{"org.opencontainers.image.ref.name":"example/oci:1"}},
			{"digest":"sha256:bb","annotations":{"io.containerd.image.name":"docker.io/example/full:2","org.opencontainers.image.ref.name":"2"}},
			{"digest":"sha256:bb"}]}`)},
		{Path: "blobs/sha256/aa", Data: []byte(`{"manifests":[{"digest":"sha256:bb"}]}`)},
		{Path: "blobs/sha256/bb", Data: []byte(`{"config":{"digest":"sha256:cc"}}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Inspect(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	want := []Image{{Refs: []string{"example/oci:1"}, ID: "sha256:cc"}, {Refs: []string{"docker.io/example/full:2"}, ID: "sha256:cc"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInspectRefuses(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]File{
		"no image":          {{Path: "x.json", Data: []byte(`{}`)}},
		"config missing":    {{Path: "manifest.json", Data: []byte(`[{"Config":"c.json","RepoTags":["a:1"]}]`)}},
		"manifest missing":  {{Path: "index.json", Data: []byte(`{"manifests":[{"digest":"sha256:aa","annotations":{"io.containerd.image.name":"a:1"}}]}`)}},
		"endless indexes":   {{Path: "index.json", Data: []byte(`{"manifests":[{"digest":"sha256:aa","annotations":{"io.containerd.image.name":"a:1"}}]}`)}, {Path: "blobs/sha256/aa", Data: []byte(`{"manifests":[{"digest":"sha256:aa"}]}`)}},
		"manifest is other": {{Path: "manifest.json", Data: []byte(`{"Config":1}`)}},
	} {
		data, err := writeTar(files)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Inspect(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: accepted as %v", name, got)
		}
	}
}

func FuzzInspect(f *testing.F) {
	data, err := Build("a:1", nil, []File{{Path: "a", Data: []byte("A")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:700])
	f.Fuzz(func(t *testing.T, in []byte) {
		images, err := Inspect(bytes.NewReader(in))
		if err != nil && images != nil {
			t.Error("images beside an error")
		}
	})
}
