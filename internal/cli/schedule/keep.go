package schedule

import (
	"strings"

	"github.com/spf13/cobra"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// keepRule is a rule by which a schedule keeps backups besides the newest ones. Its flag is named like its annotation.
type keepRule struct {
	annotation string
	// adjective is what a number of such backups is called. It is empty for the span.
	adjective string
	help      string
}

var keepRules = []keepRule{
	{harvesterv1.AnnotationKeepHourly, "hourly", "also keep the newest of each of N hours"},
	{harvesterv1.AnnotationKeepDaily, "daily", "also keep the newest of each of N days"},
	{harvesterv1.AnnotationKeepWeekly, "weekly", "also keep the newest of each of N weeks, from Monday"},
	{harvesterv1.AnnotationKeepMonthly, "monthly", "also keep the newest of each of N months"},
	{harvesterv1.AnnotationKeepYearly, "yearly", "also keep the newest of each of N years"},
	{
		harvesterv1.AnnotationKeepWithin, "",
		"also keep all in a span before the newest, such as 36h, 14d, 6m (months) or 1y6m",
	},
}

// annotationPrefix begins the annotations that have a flag of the same name.
const annotationPrefix = "varvebackup.io/"

// keepFlags are the annotations that flags such as --keep-daily stand for, of those flags that were given.
type keepFlags map[string]string

func (k *keepFlags) addFlags(c *cobra.Command) {
	*k = keepFlags{}
	for _, rule := range keepRules {
		kind := "int"
		if rule.adjective == "" {
			kind = "string"
		}
		c.Flags().Var(&keepFlag{*k, rule.annotation, kind}, strings.TrimPrefix(rule.annotation, annotationPrefix),
			rule.help)
	}
}

// applyTo writes the flags into the annotations of a schedule. An empty value takes a rule away.
func (k keepFlags) applyTo(s *harvesterv1.ScheduleVMBackup) {
	for annotation, value := range k {
		if value == "" {
			delete(s.Annotations, annotation)
			continue
		}
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[annotation] = value
	}
}

// keepFlag is one of the flags. Package schedule checks its value, for all flags together.
type keepFlag struct {
	all              keepFlags
	annotation, kind string
}

func (f *keepFlag) String() string        { return f.all[f.annotation] }
func (f *keepFlag) Type() string          { return f.kind }
func (f *keepFlag) Set(text string) error { f.all[f.annotation] = text; return nil }

// describeKeepRules says what a schedule keeps besides the newest backups: "7 daily, 12 monthly, all within 30d".
func describeKeepRules(s *harvesterv1.ScheduleVMBackup) string {
	var texts []string
	for _, rule := range keepRules {
		switch value := s.Annotations[rule.annotation]; {
		case value == "" || value == "0":
		case rule.adjective == "":
			texts = append(texts, "all within "+value)
		default:
			texts = append(texts, value+" "+rule.adjective)
		}
	}
	return strings.Join(texts, ", ")
}
