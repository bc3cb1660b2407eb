package definition

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// References returns the names of the Secrets and ConfigMaps that a machine's spec refers to, sorted. They are found by
// the names that KubeVirt gives to such fields: secretRef and userDataSecretRef with a name, secret with a secretName,
// configMap with a name, and imagePullSecret.
func References(spec runtime.RawExtension) (secrets, configMaps []string, err error) {
	var fields any
	if err := json.Unmarshal(spec.Raw, &fields); err != nil {
		return nil, nil, fmt.Errorf("decode the spec of the machine: %w", err)
	}
	found := map[referenceKind]map[string]bool{toSecret: {}, toConfigMap: {}}
	visitReferences(fields, func(kind referenceKind, name string) string {
		found[kind][name] = true
		return name
	})
	return slices.Sorted(maps.Keys(found[toSecret])), slices.Sorted(maps.Keys(found[toConfigMap])), nil
}

// referenceKind is the kind of what a machine refers to.
type referenceKind string

const (
	toSecret    referenceKind = "Secret"
	toConfigMap referenceKind = "ConfigMap"
)

// visitReferences calls visit with each name of a Secret or a ConfigMap in decoded JSON, and puts what it returns in its
// place.
func visitReferences(value any, visit func(kind referenceKind, name string) string) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			visitReferences(item, visit)
		}
	case map[string]any:
		for key, field := range v {
			if kind, of, in := referenceAt(v, key, field); kind != "" {
				if name, _ := of[in].(string); name != "" {
					of[in] = visit(kind, name)
				}
			}
			visitReferences(field, visit)
		}
	}
}

// referenceAt returns the object and the key of it that has the name to which a field refers; kind "": it refers to none.
func referenceAt(object map[string]any, key string, field any) (kind referenceKind, of map[string]any, in string) {
	fields, _ := field.(map[string]any)
	switch lower := strings.ToLower(key); {
	case strings.HasSuffix(lower, "secretref"):
		return toSecret, fields, "name"
	case lower == "secret":
		return toSecret, fields, "secretName"
	case lower == "imagepullsecret":
		return toSecret, object, key
	case lower == "configmap", strings.HasSuffix(lower, "configmapref"):
		return toConfigMap, fields, "name"
	}
	return "", nil, ""
}
