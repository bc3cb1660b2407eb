package deploy_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write deploy/monitoring/prometheus-operator.yaml")

const (
	rulesFile    = "monitoring/prometheus-rules.yaml"
	rulesTest    = "monitoring/prometheus-rules-test.yaml"
	operatorFile = "monitoring/prometheus-operator.yaml"
)

// operatorHeader is what the operator's file has before the groups of rules.
const operatorHeader = `# What a cluster with the Prometheus operator needs to watch Varve: how to scrape it, and its alerts. It is no part of
# the installation, because the kinds are the operator's. ` + "`make generate`" + ` writes it from prometheus-rules.yaml.
# Add the labels that your Prometheus selects by.
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: varve
  namespace: varve
  labels:
    app.kubernetes.io/name: varve
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: varve
  endpoints:
    - port: metrics
      scheme: https
      # The account of your Prometheus needs the ClusterRole varve-metrics-reader. Each process makes its own certificate.
      bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
      tlsConfig:
        insecureSkipVerify: true
      honorLabels: true
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: varve
  namespace: varve
  labels:
    app.kubernetes.io/name: varve
spec:
`

// ruleGroups is the content of a rule file.
type ruleGroups struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// readRules returns the rules of a file. A field that rules do not have fails the test.
func readRules(t *testing.T) []rule {
	t.Helper()
	var file ruleGroups
	if err := yaml.UnmarshalStrict([]byte(readText(t, rulesFile)), &file); err != nil {
		t.Fatalf("%s: %v", rulesFile, err)
	}
	var all []rule
	for _, g := range file.Groups {
		if g.Name == "" || len(g.Rules) == 0 {
			t.Errorf("group %+v has no name or no rules", g)
		}
		all = append(all, g.Rules...)
	}
	return all
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documentedMetrics returns the labels of each metric in docs/metrics.md, which another test holds equal to what the
// components register.
func documentedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `(varve_\\w+)` \\| (\\w+) \\| (.*?) \\|")
	all := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(readText(t, "../docs/metrics.md"), -1) {
		labels := strings.Split(strings.ReplaceAll(m[3], "`", ""), ", ")
		all[m[1]] = labels
	}
	if len(all) < 15 {
		t.Fatalf("only %d metrics", len(all))
	}
	return all
}

var (
	usedMetric  = regexp.MustCompile(`\b(varve_\w+)(?:\{([^}]*)\})?`)
	usedMatcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	usedLabel   = regexp.MustCompile(`\$labels\.(\w+)`)
	grouping    = regexp.MustCompile(`by \(([^)]*)\)`)
	limit       = regexp.MustCompile(`varve:\w+`)
)

// A misspelt metric or label makes an alert that never fires, and nobody notices.
func TestAlerts_useMetricsThatExist(t *testing.T) {
	t.Parallel()
	registered := documentedMetrics(t)
	recorded := map[string]bool{}
	for _, r := range readRules(t) {
		if r.Record != "" {
			recorded[r.Record] = true
			continue
		}
		used := usedMetric.FindAllStringSubmatch(r.Expr, -1)
		if len(used) == 0 {
			t.Errorf("%s uses no metric: %s", r.Alert, r.Expr)
		}
		for _, m := range used {
			labels, ok := registered[m[1]]
			if !ok {
				t.Errorf("%s uses %s, which is not registered", r.Alert, m[1])
			}
			for _, matcher := range usedMatcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(labels, matcher[1]) {
					t.Errorf("%s selects by %s, which %s does not have", r.Alert, matcher[1], m[1])
				}
			}
		}
		for _, name := range limit.FindAllString(r.Expr, -1) {
			if !recorded[name] {
				t.Errorf("%s uses %s, which no rule before it records", r.Alert, name)
			}
		}
		if opened := strings.Count(r.Expr, "(") + strings.Count(r.Expr, "{"); opened != strings.Count(r.Expr, ")")+strings.Count(r.Expr, "}") {
			t.Errorf("%s: parentheses in %s", r.Alert, r.Expr)
		}
	}
}

func TestAlerts_sayWhatHappenedToWhatAndWhatToDo(t *testing.T) {
	t.Parallel()
	documents := readText(t, "../docs/metrics.md")
	tests := readText(t, rulesTest)
	severities := []string{"critical", "warning", "info"}
	for _, r := range readRules(t) {
		if r.Record != "" {
			continue
		}
		if !slices.Contains(severities, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
		}
		var kept []string
		for _, m := range grouping.FindAllStringSubmatch(r.Expr, -1) {
			kept = append(kept, strings.Split(m[1], ", ")...)
		}
		for _, m := range usedLabel.FindAllStringSubmatch(fmt.Sprint(r.Annotations), -1) {
			if !slices.Contains(kept, m[1]) {
				t.Errorf("%s tells %s, which its expression does not keep", r.Alert, m[1])
			}
		}
		if !strings.Contains(documents, "`"+r.Alert+"`") {
			t.Errorf("docs/metrics.md does not have %s", r.Alert)
		}
		if !strings.Contains(tests, "alertname: "+r.Alert+"\n") {
			t.Errorf("%s does not say when %s fires", rulesTest, r.Alert)
		}
	}
	for _, name := range regexp.MustCompile("(?m)^\\| `(Varve\\w+)`").FindAllStringSubmatch(documents, -1) {
		if !slices.ContainsFunc(readRules(t), func(r rule) bool { return r.Alert == name[1] }) {
			t.Errorf("docs/metrics.md has %s, which is no alert", name[1])
		}
	}
}

// The Prometheus operator gets the same rules, and finds what it is to scrape.
func TestOperatorManifest_hasTheSameRules(t *testing.T) {
	t.Parallel()
	_, groups, found := strings.Cut(readText(t, rulesFile), "\ngroups:\n")
	if !found {
		t.Fatalf("%s has no groups", rulesFile)
	}
	want := operatorHeader + indent("groups:\n"+groups)
	if *update {
		if err := os.WriteFile(operatorFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, readText(t, operatorFile)); diff != "" {
		t.Errorf(verdict.GoldenMark+"%s is out of date, run make generate: %s", operatorFile, diff)
	}
	for _, name := range []string{
		"varve-controller-metrics", "varve-handler-metrics", "varve-store-metrics",
	} {
		service := find[*corev1.Service](t, name)
		if service.Labels["app.kubernetes.io/name"] != "varve" || service.Spec.Ports[0].Name != "metrics" {
			t.Errorf("the ServiceMonitor does not select %s: %v %v", name, service.Labels, service.Spec.Ports)
		}
		if !strings.Contains(operatorHeader, "scheme: https") || service.Spec.Ports[0].Port != 8443 {
			t.Errorf("%s: metrics are served over TLS on port 8443, not %d", name, service.Spec.Ports[0].Port)
		}
	}
}

// indent moves lines two columns to the right.
func indent(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) != "" {
			lines[i] = "  " + l
		}
	}
	return strings.Join(lines, "")
}
