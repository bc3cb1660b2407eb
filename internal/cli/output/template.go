package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	jsonutil "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// How the values of -o begin that end with a template. Both mean what they mean to kubectl.
const (
	jsonPathPrefix      = "jsonpath="
	customColumnsPrefix = "custom-columns="
)

// noValue is what a custom column shows for an object that lacks the field, as kubectl does.
const noValue = "<none>"

// isTemplate reports whether a form is a template.
func isTemplate(form string) bool {
	return strings.HasPrefix(form, jsonPathPrefix) || IsCustomColumns(form)
}

// IsCustomColumns reports whether a form is a table with the user's columns.
func IsCustomColumns(form string) bool { return strings.HasPrefix(form, customColumnsPrefix) }

// validateTemplate refuses a template that cannot be parsed, and says what can.
func validateTemplate(form string) error {
	if template, is := strings.CutPrefix(form, jsonPathPrefix); is {
		_, err := parseJSONPath(template)
		return err
	}
	_, err := parseColumns(strings.TrimPrefix(form, customColumnsPrefix))
	return err
}

func parseJSONPath(template string) (*jsonpath.JSONPath, error) {
	// Text without braces would be shown as it is.
	if !strings.Contains(template, "{") {
		return nil, errors.New("give a template with paths in braces, such as jsonpath='{.metadata.name}'")
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("%w: give a template such as jsonpath='{.items[*].metadata.name}'", err)
	}
	return path, nil
}

// column is a column that the user defines.
type column struct {
	header string
	path   *jsonpath.JSONPath
}

// columnPath matches name1.name2, .name1.name2, {name1.name2} and {.name1.name2}.
var columnPath = regexp.MustCompile(`^\{\.?([^{}]+)\}$|^\.?([^{}]+)$`)

func parseColumns(spec string) ([]column, error) {
	var columns []column
	for part := range strings.SplitSeq(spec, ",") {
		header, path, ok := strings.Cut(part, ":")
		found := columnPath.FindStringSubmatch(path)
		if !ok || header == "" || found == nil {
			return nil, fmt.Errorf("column %q: use HEADER:PATH, such as custom-columns=NAME:.metadata.name,PHASE:.status.phase", part)
		}
		parsed := jsonpath.New(header).AllowMissingKeys(true)
		if err := parsed.Parse("{." + found[1] + found[2] + "}"); err != nil {
			return nil, fmt.Errorf("column %s: %w: use a path such as .metadata.name", header, err)
		}
		columns = append(columns, column{header: header, path: parsed})
	}
	return columns, nil
}

// printTemplate writes data as a template says. Custom columns make a row of each of the data's items, or one of data
// that has none.
func (p *Printer) printTemplate(data any) error {
	generic, err := toGeneric(data)
	if err != nil {
		return err
	}
	if template, is := strings.CutPrefix(p.Form, jsonPathPrefix); is {
		path, err := parseJSONPath(template)
		if err != nil {
			return err
		}
		return explainTemplate(p.Form, path.Execute(p.Out, generic))
	}
	columns, err := parseColumns(strings.TrimPrefix(p.Form, customColumnsPrefix))
	if err != nil {
		return err
	}
	t := &Table{}
	for _, c := range columns {
		t.Header = append(t.Header, c.header)
	}
	for _, item := range listItems(generic) {
		row := make([]string, len(columns))
		for i, c := range columns {
			if row[i], err = c.formatValues(item); err != nil {
				return explainTemplate(p.Form, err)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return p.PrintTable(t)
}

// listItems returns the items of a list, or the data alone if it is none.
func listItems(data any) []any {
	if fields, is := data.(map[string]any); is {
		if items, is := fields["items"].([]any); is {
			return items
		}
	}
	return []any{data}
}

// formatValues returns the values that the column's path finds, separated by commas.
func (c column) formatValues(data any) (string, error) {
	results, err := c.path.FindResults(data)
	if err != nil {
		return "", err
	}
	var values []string
	for _, value := range slices.Concat(results...) {
		values = append(values, formatValue(value))
	}
	if len(values) == 0 {
		return noValue, nil
	}
	return strings.Join(values, ","), nil
}

func formatValue(value reflect.Value) string {
	if !value.IsValid() || value.Kind() == reflect.Interface && value.IsNil() {
		return noValue
	}
	return human.Line(fmt.Sprint(value.Interface()))
}

// toGeneric returns data as maps, slices and values, with the names that -o json shows. Whole numbers stay whole.
func toGeneric(data any) (any, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("print: %w", err)
	}
	var generic any
	if err := jsonutil.Unmarshal(text, &generic); err != nil {
		return nil, fmt.Errorf("print: %w", err)
	}
	return generic, nil
}

// explainTemplate says that a template does not fit the data.
func explainTemplate(form string, err error) error {
	if err == nil {
		return nil
	}
	return failure.New("-o json shows the fields that a template can name", "--output %s: %w", form, err)
}
