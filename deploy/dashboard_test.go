package deploy_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFile = "grafana/varve.json"

// dashboard is what the tests need of a Grafana dashboard.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		RefID        string `json:"refId"`
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.NewDecoder(bytes.NewBufferString(readText(t, dashboardFile))).Decode(&d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	if d.UID == "" || d.Title == "" || len(d.Panels) < 20 {
		t.Fatalf("%s: %q, %q, %d panels", dashboardFile, d.UID, d.Title, len(d.Panels))
	}
	return d
}

var (
	histogramPart = regexp.MustCompile(`_(bucket|sum|count)$`)
	groupedBy     = regexp.MustCompile(`(?:by|on|group_left) \(([^)]*)\)`)
	usedVariable  = regexp.MustCompile(`\$\{?(\w+)\}?`)
	legendLabel   = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// targetLabels are those that Prometheus adds to every series, or that a histogram has besides its own.
var targetLabels = []string{"instance", "job", "pod", "le"}

// A misspelt metric or label makes a panel that is always empty, as if nothing had happened.
func TestDashboard_usesMetricsAndLabelsThatExist(t *testing.T) {
	t.Parallel()
	registered := documentedMetrics(t)
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			checkExpression(t, p.Title, target.Expr, target.LegendFormat, registered)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	for _, v := range d.Templating.List {
		for _, m := range usedMetric.FindAllStringSubmatch(v.Definition, -1) {
			if _, ok := registered[m[1]]; !ok {
				t.Errorf("variable %s uses %s, which is not registered", v.Name, m[1])
			}
		}
	}
}

// checkExpression fails the test if an expression, or its legend, has a metric or a label that does not exist.
func checkExpression(t *testing.T, title, expression, legend string, registered map[string][]string) {
	t.Helper()
	used := usedMetric.FindAllStringSubmatch(expression, -1)
	if len(used) == 0 {
		t.Errorf("%s uses no metric: %s", title, expression)
	}
	known := slices.Clone(targetLabels)
	for _, m := range used {
		labels, ok := registered[m[1]]
		if !ok {
			labels, ok = registered[histogramPart.ReplaceAllString(m[1], "")]
		}
		if !ok {
			t.Errorf("%s uses %s, which is not registered", title, m[1])
		}
		known = append(known, labels...)
		for _, matcher := range usedMatcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, matcher[1]) {
				t.Errorf("%s selects by %s, which %s does not have", title, matcher[1], m[1])
			}
		}
	}
	var named []string
	for _, m := range groupedBy.FindAllStringSubmatch(expression, -1) {
		named = append(named, strings.Split(m[1], ", ")...)
	}
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		named = append(named, m[1])
		if grouped := groupedBy.FindStringSubmatch(expression); grouped != nil && !strings.Contains(grouped[1], m[1]) {
			t.Errorf("%s names %s, which %s does not keep", title, m[1], expression)
		}
	}
	for _, label := range named {
		if !slices.Contains(known, label) {
			t.Errorf("%s uses the label %s, which no metric of %s has", title, label, expression)
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expression, pair[:1]) != strings.Count(expression, pair[1:]) {
			t.Errorf("%s: %s in %s", title, pair, expression)
		}
	}
}

func TestDashboard_panelsHaveTheirOwnPlace(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	for _, m := range usedVariable.FindAllStringSubmatch(readText(t, dashboardFile), -1) {
		if name := m[1]; !variables[name] && name != "__all" {
			t.Errorf("nothing defines the variable %s", name)
		}
	}
	ids, taken := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if other, twice := ids[p.ID]; twice || p.ID <= 0 {
			t.Errorf("%s has the ID %d, as %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.Title == "" || p.Type != "row" && p.Description == "" {
			t.Errorf("panel %d: title %q, description %q", p.ID, p.Title, p.Description)
		}
		g := p.GridPos
		if g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s is at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, twice := taken[[2]int{x, y}]; twice {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" {
				t.Errorf("%s has the query %q twice", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
	}
}

// Whoever adds a metric of data movements, schedules or images must add it to the dashboard, too.
func TestDashboard_showsEveryMetricOfDataMovementsSchedulesAndImages(t *testing.T) {
	t.Parallel()
	text := readText(t, dashboardFile)
	for _, name := range slices.Sorted(maps.Keys(documentedMetrics(t))) {
		about := strings.HasPrefix(name, "varve_data_") || strings.HasPrefix(name, "varve_repository_") ||
			strings.HasPrefix(name, "varve_location_available") || strings.HasPrefix(name, "varve_kept_") ||
			strings.HasPrefix(name, "varve_schedule_") || strings.HasPrefix(name, "varve_image_") ||
			strings.HasPrefix(name, "varve_store_") && name != "varve_store_info"
		if about && !strings.Contains(text, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
