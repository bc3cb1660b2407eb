package datamove

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Names are those of Secrets and Jobs, whose pods carry them as labels, and differ wherever what they stand for does.
func TestRepositoryNames_areLabelsAndDiffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 63)
	seen := map[string]string{}
	for _, namespace := range []string{"shop", "shop2", long, long[1:]} {
		for _, location := range []Location{{Namespace: "velero", Name: "default"}, {Namespace: "varve", Name: "default"}, {Namespace: "velero", Name: "a." + long}} {
			repository := RepositoryName(namespace, location)
			for what, name := range map[string]string{"password": NamespacePasswordSecret(namespace, location), "job": MaintenanceJob(repository)} {
				key := what + " of " + namespace + " in " + location.String()
				if problems := validation.IsDNS1123Label(name); len(problems) > 0 && what == "job" {
					t.Errorf("%s: %s: %v", key, name, problems)
				}
				if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
					t.Errorf("%s: %s: %v", key, name, problems)
				}
				if seen[name] != "" {
					t.Errorf("%s is the name for %s and for %s", name, seen[name], key)
				}
				seen[name] = key
			}
			if name := LocationPasswordSecret(location); seen[name] != "" && seen[name] != location.String() {
				t.Errorf("%s is the name for %s and for %s", name, seen[name], location)
			} else {
				seen[name] = location.String()
			}
		}
	}
}

// docs/scale.md has the formula.
func TestRoomFor(t *testing.T) {
	t.Parallel()
	const gib, million = 1 << 30, 1_000_000
	for name, c := range map[string]struct {
		contents        int64
		memory, scratch int64
	}{
		"not known":                 {0, gib, 4 * gib},
		"nonsense":                  {-1, gib, 4 * gib},
		"small":                     {million, gib, 4 * gib},
		"10 TiB, blocks of 256 KiB": {42 * million, 512<<20 + 66*42*million, 2560<<20 + 132*42*million},
		"100 TiB":                   {400 * million, 512<<20 + 66*400*million, 2560<<20 + 132*400*million},
		"more than a node has":      {1 << 62, 32 * gib, 64 * gib},
	} {
		if got := RoomFor(c.contents); got.Memory != c.memory || got.Scratch != c.scratch {
			t.Errorf("%s: %+v, want %d and %d", name, got, c.memory, c.scratch)
		}
	}
}

func TestContentsOf(t *testing.T) {
	t.Parallel()
	for note, want := range map[string]int64{"": 0, "x": 0, "42000000": 42_000_000} {
		meta := &metav1.ObjectMeta{Annotations: map[string]string{AnnotationContents: note}}
		if got := ContentsOf(meta); got != want {
			t.Errorf("%q: %d", note, got)
		}
	}
}

// A maintenance pod's last words come from the pod itself, or from the end of its log.
func TestMaintenanceReport_passesThroughATerminationMessage(t *testing.T) {
	t.Parallel()
	long := MaintenanceReport{Contents: 1 << 40, Remark: strings.Repeat("\"ö", 3000)}
	text := string(long.Encode())
	got := DecodeMaintenanceReport(text)
	begins := strings.HasPrefix(long.Remark, strings.TrimSuffix(got.Remark, "…"))
	if len(text) > 4096 || got.Contents != long.Contents || !begins {
		t.Errorf("%d bytes, %+v", len(text), got)
	}
	for _, text := range []string{"", "killed", "{", `{"contents":-1}`} {
		if got := DecodeMaintenanceReport(text); got != (MaintenanceReport{Remark: text}) {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
