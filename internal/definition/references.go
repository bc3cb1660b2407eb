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
	r := references{secrets: map[string]bool{}, configMaps: map[string]bool{}}
	r.collectAll(fields)
	return slices.Sorted(maps.Keys(r.secrets)), slices.Sorted(maps.Keys(r.configMaps)), nil
}

type references struct{ secrets, configMaps map[string]bool }

func (r references) collectAll(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			r.collectAll(item)
		}
	case map[string]any:
		for key, field := range v {
			r.addField(key, field)
			r.collectAll(field)
		}
	}
}

// addField adds what one field refers to.
func (r references) addField(key string, field any) {
	named := func(key string) string {
		object, _ := field.(map[string]any)
		name, _ := object[key].(string)
		return name
	}
	add := func(to map[string]bool, name string) {
		if name != "" {
			to[name] = true
		}
	}
	switch lower := strings.ToLower(key); {
	case strings.HasSuffix(lower, "secretref"):
		add(r.secrets, named("name"))
	case lower == "secret":
		add(r.secrets, named("secretName"))
	case lower == "imagepullsecret":
		name, _ := field.(string)
		add(r.secrets, name)
	case lower == "configmap", strings.HasSuffix(lower, "configmapref"):
		add(r.configMaps, named("name"))
	}
}
