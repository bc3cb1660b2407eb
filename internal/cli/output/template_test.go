package output

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

func backups() *backupv1.VirtualMachineBackupList {
	list := &backupv1.VirtualMachineBackupList{Items: []backupv1.VirtualMachineBackup{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"tier": "1"}, Finalizers: []string{"x", "y"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
	}}
	list.Items[0].Status.MovedBytes = 1 << 40
	list.Items[0].Status.Message = "a\x1b[2Jb"
	return list
}

func TestTemplate_showsWhatKubectlShows(t *testing.T) {
	t.Parallel()
	for form, want := range map[string]string{
		"jsonpath={.items[*].metadata.name}":                                          "a b",
		"jsonpath={range .items[*]}{.metadata.name}={.status.movedBytes}{'\\n'}{end}": "a=1099511627776\nb=\n",
		"jsonpath={.items[?(@.metadata.name=='b')].kind}":                             "VirtualMachineBackup",
		"jsonpath={.nothing}":                                                         "",
		"custom-columns=NAME:.metadata.name,MOVED:{.status.movedBytes},F:metadata.finalizers[*],L:{metadata.labels.tier}": "" +
			"NAME   MOVED           F        L\n" +
			"a      1099511627776   x,y      1\n" +
			"b      <none>          <none>   <none>\n",
		"custom-columns=M:.status.message": "M\na [2Jb\n<none>\n",
	} {
		var out strings.Builder
		if err := PrintObject(&out, form, backups()); err != nil {
			t.Errorf("%s: %v", form, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", form, diff)
		}
	}
}

// A single object makes one row; without headers, only that.
func TestCustomColumns_ofOneObject(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := &Printer{Out: &out, Form: "custom-columns=NAME:.metadata.name", NoHeaders: true}
	if err := p.PrintObject(&backups().Items[1]); err != nil || out.String() != "b\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestTemplate_thatDoesNotFitIsNamed(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"jsonpath={.kind[?(@.x=='y')]}", "custom-columns=X:.kind[?(@.x=='y')]"} {
		if err := PrintObject(&strings.Builder{}, form, backups()); err == nil || !strings.HasPrefix(err.Error(), "--output "+form) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

func TestOutputFlag_completesTemplates(t *testing.T) {
	t.Parallel()
	var form string
	c := &cobra.Command{Use: "x"}
	AddFlag(c, &form, AsTable, AsJSON)
	complete, _ := c.GetFlagCompletionFunc("output")
	for typed, want := range map[string]cobra.ShellCompDirective{
		"": cobra.ShellCompDirectiveNoFileComp, "js": cobra.ShellCompDirectiveNoFileComp,
		"jsonp": cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace, "c": cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace,
	} {
		words, got := complete(c, nil, typed)
		if diff := cmp.Diff([]string{"table", "json", "jsonpath=", "custom-columns="}, words); diff != "" || got != want {
			t.Errorf("%q: directive %d, want %d %s", typed, got, want, diff)
		}
	}
}
