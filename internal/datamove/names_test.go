package datamove

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNames_fitAndAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	check := func(name string) {
		t.Helper()
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 { // labels have them as values, too
			t.Errorf("%q: %v", name, msgs)
		}
		if seen[name] {
			t.Errorf("%q is used twice", name)
		}
		seen[name] = true
	}
	const uid = "8debd2ab-3755-4700-9509-044e0dca1dc6"
	check(ChildName(Upload, uid))
	check(ChildName(Download, uid))
	long := strings.Repeat("a", 39) + "-" + strings.Repeat("b", 23)
	for _, namespace := range []string{"a", "a-b", long, long[:62] + "c", strings.Repeat("x", 63)} {
		for _, location := range []Location{{Namespace: "velero", Name: "default"}, {Namespace: "varve", Name: "default"}, {Namespace: "velero", Name: strings.Repeat("l.", 100)}} {
			check(RepositoryName(namespace, location))
		}
	}
	// A slash separates what a hash has: no two repositories share one.
	check(RepositoryName("a", Location{Namespace: "b", Name: "c-d"}))
	check(RepositoryName("a", Location{Namespace: "b-c", Name: "d"}))
	for _, key := range []string{
		Finalizer, LabelObject, LabelRepository, AnnotationOwner, AnnotationReport, AnnotationNote, AnnotationExposed,
		LabelUploadName, LabelUploadNamespace, AnnotationGroup,
	} {
		if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
			t.Errorf("%q: %v", key, msgs)
		}
	}
}

func TestRepositoryPrefix_isBelowPlugins(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"": "plugins/varve/app/", "cluster-a": "cluster-a/plugins/varve/app/", "/a/b/": "a/b/plugins/varve/app/", "/": "plugins/varve/app/",
	} {
		if got := RepositoryPrefix(prefix, "app"); !cmp.Equal(got, want) {
			t.Errorf("%q: %q", prefix, got)
		}
	}
}
