package backupstate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
)

// constant is a string constant of the API with its comment.
type constant struct{ name, typ, value, doc string }

// apiConstants returns the string constants of a file of the API.
func apiConstants(t *testing.T, file string) []constant {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../api/backup/v1alpha1/"+file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var found []constant
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		c := constant{name: spec.Names[0].Name, value: value, doc: strings.TrimSpace(spec.Doc.Text())}
		if typ, ok := spec.Type.(*ast.Ident); ok {
			c.typ = typ.Name
		}
		found = append(found, c)
		return true
	})
	return found
}

func TestPhases_coverTheAPI(t *testing.T) {
	t.Parallel()
	var named, described []backupv1.BackupPhase
	for _, c := range apiConstants(t, "backup.go") {
		if c.typ == "BackupPhase" {
			named = append(named, backupv1.BackupPhase(c.value))
		}
	}
	for _, p := range phases {
		described = append(described, p.Name)
	}
	if len(named) == 0 || !slices.Equal(named, described) {
		t.Errorf("the API has %v, the table %v", named, described)
	}
}

func TestPhases_haveOneOwnerUnlessFinal(t *testing.T) {
	t.Parallel()
	for _, p := range phases {
		if final := p.Name.Final(); final != (p.Owner == "") || final != (len(p.Next) == 0) {
			t.Errorf("%s: owner %q, next %v", p.Name, p.Owner, p.Next)
		}
		if (p.Owner == Handler) != (p.GivenUp != "") {
			t.Errorf("%s of the %s is given up to %q", p.Name, p.Owner, p.GivenUp)
		}
		if p.GivenUp != "" && !slices.Contains(p.Next, p.GivenUp) {
			t.Errorf("%s is given up to %s, which is not next", p.Name, p.GivenUp)
		}
		if p.Condition == "" {
			t.Errorf("%s has no condition", p.Name)
		}
		for _, next := range p.Next {
			known := slices.ContainsFunc(phases, func(q Phase) bool { return q.Name == next })
			if !known || next == p.Name {
				t.Errorf("%s leads to %s", p.Name, next)
			}
		}
	}
}

// The admission policy lets a handler write what the table says, and nothing else.
func TestPhases_matchTheAdmissionPolicy(t *testing.T) {
	t.Parallel()
	policy, err := os.ReadFile("../../deploy/admission/handler-node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for _, p := range phases {
		if p.Owner == Handler {
			to := []string{"'" + string(p.Name) + "'"}
			for _, next := range p.Next {
				to = append(to, "'"+string(next)+"'")
			}
			rules = append(rules, fmt.Sprintf("variables.from == '%s' && variables.to in [%s]", p.Name, strings.Join(to, ", ")))
		}
	}
	if found := strings.Join(strings.Fields(string(policy)), " "); !strings.Contains(found, ">- "+strings.Join(rules, " || ")+" reason:") {
		t.Errorf("the policy lacks the expression\n%s", strings.Join(rules, " ||\n"))
	}
}

func TestMayWrite_keepsComponentsApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		writer   Component
		from, to backupv1.BackupPhase
		want     bool
	}{
		{Controller, "", backupv1.BackupPending, true},
		{Controller, "", backupv1.BackupAttaching, true},
		{Controller, backupv1.BackupStarting, backupv1.BackupStarting, true},
		{Controller, backupv1.BackupStarting, backupv1.BackupCopyFailed, true},
		{Controller, backupv1.BackupStarting, backupv1.BackupCopied, false},
		{Controller, backupv1.BackupPruning, backupv1.BackupPruned, true},
		{Controller, backupv1.BackupDone, backupv1.BackupDone, false},
		{Controller, "Future", "Future", false},
		{Handler, backupv1.BackupStarting, backupv1.BackupCopied, true},
		{Handler, backupv1.BackupCopying, backupv1.BackupStarting, false},
		{Handler, backupv1.BackupCopied, backupv1.BackupCopied, false},
		{Handler, backupv1.BackupPending, backupv1.BackupFailed, false},
		{Handler, backupv1.BackupPruned, backupv1.BackupDone, false},
	} {
		if got := MayWrite(test.writer, test.from, test.to); got != test.want {
			t.Errorf("%s, %s to %s: %v", test.writer, test.from, test.to, got)
		}
	}
}

func TestEndsWell_needsAReader(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		by     backupv1.PullReader
		mode   backupv1.BackupMode
		phase  backupv1.BackupPhase
		ready  metav1.ConditionStatus
		stored string
		want   bool
	}{
		"clients can read it":             {mode: "Pull", phase: "Serving", ready: "True", want: true},
		"clients, said so":                {mode: "pull", by: "Clients", phase: "Serving", ready: "True", want: true},
		"clients could never read it":     {mode: "Pull", phase: "Serving", ready: "False"},
		"it does not serve yet":           {mode: "Pull", phase: "Starting", ready: "True"},
		"it has failed":                   {mode: "Pull", phase: "CopyFailed", ready: "True"},
		"clients do not store it":         {mode: "Pull", phase: "Serving", ready: "False", stored: "true"},
		"it is stored":                    {mode: "Pull", by: "DataUploads", phase: "Serving", ready: "True", stored: "true", want: true},
		"it is stored, in the other case": {mode: "pull", by: "DataUploads", phase: "Serving", ready: "True", stored: "true", want: true},
		"it is not stored":                {mode: "Pull", by: "DataUploads", phase: "Serving", ready: "True"},
		"something else is said":          {mode: "Pull", by: "DataUploads", phase: "Serving", ready: "True", stored: "false"},
		"it is stored, and not served":    {mode: "Pull", by: "DataUploads", phase: "Serving", ready: "False", stored: "true"},
		"it is stored, and has failed":    {mode: "Pull", by: "DataUploads", phase: "CopyFailed", ready: "True", stored: "true"},
	} {
		b := &backupv1.VirtualMachineBackup{}
		b.Spec.Mode, b.Spec.PulledBy, b.Status.Phase = c.mode, c.by, c.phase
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: c.ready, Reason: "Test"})
		if c.stored != "" {
			b.Annotations = map[string]string{layout.AnnotationStored: c.stored}
		}
		if got := EndsWell(b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
