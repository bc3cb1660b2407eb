package settings

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const everything = `
builtIn: true
namespaces: [backups]
concurrency:
  perNode: 3
  nodes:
  - nodeSelector: {matchLabels: {size: big}}
    perNode: 8
  - nodeSelector: {matchLabels: {disk: slow}}
    perNode: 1
  cluster: 20
  preparing: 5
prepareTimeout: 10m
consumerWait: 3m
parallel: 4
pod:
  resources: {limits: {memory: 1Gi}}
  priorityClassName: low
  tolerations: [{key: backup, operator: Exists}]
  labels: {team: storage}
  annotations: {example.com/a: b}
storageClasses:
  fast: {storageClass: fast-once, readOnly: true}
`

func TestDecode_readsEveryField(t *testing.T) {
	t.Parallel()
	s, err := Decode(everything)
	if err != nil {
		t.Fatal(err)
	}
	if !s.BuiltIn || !cmp.Equal(s.Namespaces, []string{"backups"}) || s.Concurrency.Cluster != 20 ||
		s.Concurrency.Preparing != 5 || s.PrepareTimeout.Duration != 10*time.Minute || s.Parallel != 4 ||
		s.Pod.Resources.Limits.Memory().Value() != 1<<30 || s.Pod.PriorityClassName != "low" || len(s.Pod.Tolerations) != 1 || s.Pod.Labels["team"] != "storage" ||
		s.Pod.Annotations["example.com/a"] != "b" || s.StorageClasses["fast"] != (StorageClass{StorageClass: "fast-once", ReadOnly: true}) {
		t.Errorf("%+v", s)
	}
	if got := s.EffectiveConsumerWait(); got != 3*time.Minute {
		t.Errorf("consumerWait: %s", got)
	}
	for node, want := range map[string]int{"": 3, "size=big": 8, "disk=slow": 1, "size=big,disk=slow": 1} {
		labels := map[string]string{}
		for _, l := range strings.Split(node, ",") {
			key, value, _ := strings.Cut(l, "=")
			labels[key] = value
		}
		if got := s.PerNode(labels); got != want {
			t.Errorf("node %s: %d, want %d", node, got, want)
		}
	}
}

func TestDecode_keepsDefaultsOfWhatIsAbsent(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "builtIn: false", "concurrency: {cluster: 0}"} {
		if s, err := Decode(text); err != nil || !cmp.Equal(s, Default()) {
			t.Errorf("%q: %v, %s", text, err, cmp.Diff(s, Default()))
		}
	}
	if s, err := Decode("namespaces: [a]"); err != nil || s.Serves("velero") || !s.Serves("a") {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := OfConfigMap(nil); err != nil || !cmp.Equal(s, Default()) {
		t.Errorf("no ConfigMap: %+v, %v", s, err)
	}
	if s, err := OfConfigMap(&corev1.ConfigMap{Data: map[string]string{Key: "parallel: 2"}}); err != nil || s.Parallel != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestDecode_refuses(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"concurency: {perNode: 3}":                                "concurency",
		"concurrency: {perNode: 0}":                               "concurrency.perNode",
		"concurrency: {perNode: 1001}":                            "concurrency.perNode",
		"concurrency: {cluster: -1}":                              "concurrency.cluster",
		"concurrency: {preparing: -1}":                            "concurrency.preparing",
		"concurrency: {nodes: [{perNode: -1, nodeSelector: {}}]}": "concurrency.nodes[0].perNode",
		"concurrency: {nodes: [{perNode: 1, nodeSelector: {matchExpressions: [{key: a, operator: Fits}]}}]}": "nodeSelector",
		"prepareTimeout: 0s":                      "prepareTimeout",
		"prepareTimeout: soon":                    "soon",
		"consumerWait: -1s":                       "consumerWait",
		"parallel: -1":                            "parallel",
		"namespaces: [A]":                         `"A"`,
		"pod: {labels: {a b: c}}":                 "pod.labels",
		"pod: {annotations: {a b: c}}":            "pod.annotations",
		"pod: {resources: {claims: [{name: a}]}}": "pod.resources.claims",
		"storageClasses: {a: {readWhole: true, keepSnapshot: true}}": "storageClasses.a",
		"[]":                            Key,
		"builtIn: true\nbuiltIn: false": "builtIn",
	} {
		if s, err := Decode(text); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), Key) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

// A wait that leaves no time to make the volume afterwards is shorter, and one of 0 is none.
func TestEffectiveConsumerWait_leavesTimeToPrepare(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": DefaultConsumerWait, "consumerWait: 0s": 0, "prepareTimeout: 4m": 2 * time.Minute,
		"consumerWait: 2h": DefaultPrepareTimeout / 2, "{consumerWait: 2h, prepareTimeout: 5h}": 2 * time.Hour,
	} {
		s, err := Decode(text)
		if got := s.EffectiveConsumerWait(); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestServesMover_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	s := Default()
	for mover, want := range map[string][2]bool{"varve": {true, true}, "": {false, true}, "velero": {false, true}, "velero-block": {false, false}, "Varve": {false, false}} {
		for i, builtIn := range []bool{false, true} {
			s.BuiltIn = builtIn
			if got := s.ServesMover(mover); got != want[i] {
				t.Errorf("%q, builtIn %v: %v", mover, builtIn, got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(everything)
	f.Add("namespaces: []")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Decode(text)
		if err == nil && (s.Concurrency.PerNode < 1 || s.PrepareTimeout.Duration <= 0 || s.PerNode(nil) < 0) {
			t.Errorf("%+v", s)
		}
	})
}

// Bad settings change nothing; after a start they are the defaults.
func TestLastGood_keepsWhatWasGood(t *testing.T) {
	t.Parallel()
	var l LastGood
	bad := &corev1.ConfigMap{Data: map[string]string{Key: "concurency: {}"}}
	if got, err := l.Update(bad); err == nil || !slices.Equal(got.Namespaces, Default().Namespaces) {
		t.Error(got.Namespaces, err)
	}
	if _, err := l.Update(&corev1.ConfigMap{Data: map[string]string{Key: "namespaces: [shop]"}}); err != nil {
		t.Error(err)
	}
	if got, err := l.Update(bad); err == nil || !slices.Equal(got.Namespaces, []string{"shop"}) {
		t.Error(got.Namespaces, err)
	}
	if got, err := l.Update(nil); err != nil || !slices.Equal(got.Namespaces, Default().Namespaces) {
		t.Error(got.Namespaces, err)
	}
}
