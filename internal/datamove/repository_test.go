package datamove

import (
	"strings"
	"testing"

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
