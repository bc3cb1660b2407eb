package cli_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
)

// wrongValues are invalid values for flags of `repo` and `disk`. A flag that accepts only some values must be in here.
var wrongValues = map[string][]string{
	"output": {"xml", "jsonpath", "jsonpath=", "jsonpath=.id", "jsonpath={.id", "custom-columns=", "custom-columns=ID", "custom-columns=ID:", "custom-columns=:.id", "custom-columns=ID:.id,", "custom-columns=ID:.id[", "jsonpath-file=x"}, "progress": {"loud", ""}, "format": {"vmdk"}, "backing": {"vmdk:/x", "x", "raw:"}, "compression": {"lz4", "S2", ""}, "block-size": {"3MiB", "256"},
	"parallel": {"0", "-1", "many"}, "percent": {"101", "-1", "NaN", "all"}, "cache-size": {"much", "-1Gi"},
	"bitmap": {"monday", "root=monday"}, "checkpoint": {"monday", "varve-1"}, "object-lock": {"STRICT"}, "object-lock-period": {"30", "1m", "1h", "200000w"}, "keep-within": {"1x", "0d", "d"}, "time-zone": {"Mars/Base"},
	"keep-last": {"-1", "x"}, "keep-hourly": {"-1"}, "keep-daily": {"-1"}, "keep-weekly": {"-1"}, "keep-monthly": {"-1"}, "keep-yearly": {"-1"},
}

// anyText are flags whose value is a name, a path or an address.
var anyText = []string{
	"host", "user", "parent", "disk", "name", "repo-config", "password-file", "s3-region", "s3-ca-file", "s3-credentials-file",
	"definition", "cache-dir", "socket", "listen", "tls-cert", "tls-key", "tls-client-ca", "tls-ca", "overlay",
	"location", "namespace", "kubeconfig", "context",
}

// rightUsage has arguments with which each command would begin to work.
var rightUsage = map[string]string{
	"varve repo create": "s3://127.0.0.1:1/bucket --object-lock GOVERNANCE --object-lock-period 30d", "varve repo connect": "here", "varve repo status": "", "varve repo check": "", "varve repo maintenance": "",
	"varve repo repair": "--yes", "varve disk backup": "web root=x", "varve disk checkpoint": "web",
	"varve disk list": "", "varve disk describe": "ffffffff", "varve disk definition": "ffffffff",
	"varve disk diff": "ffffffff eeeeeeee", "varve disk verify": "",
	"varve disk restore": "ffffffff out", "varve disk serve": "ffffffff --socket s", "varve disk delete": "ffffffff --yes", "varve disk prune": "--keep-last 1", "varve disk pin": "ffffffff", "varve disk unpin": "ffffffff",
}

// A wrong value of a flag is a usage error, reported before anything is opened.
func TestWrongValuesAreWrongUsage(t *testing.T) {
	t.Parallel()
	nowhere := t.TempDir() + "/nowhere"
	run := func(args ...string) error {
		var out bytes.Buffer
		root := cli.New(cli.Options{
			Program: "varve", Streams: session.Streams{In: strings.NewReader(""), Out: &out, Err: &out}, Now: time.Now,
			Env: func(name string) string {
				return map[string]string{"VARVE_REPO_CONFIG": nowhere, "VARVE_PASSWORD": "p", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}[name]
			},
		})
		root.SetArgs(args)
		return root.ExecuteContext(t.Context())
	}
	walk(tree("varve"), func(c *cobra.Command) {
		path := c.CommandPath()
		if !strings.HasPrefix(path, "varve repo ") && !strings.HasPrefix(path, "varve disk ") {
			return
		}
		usage, ok := rightUsage[path]
		if !ok {
			t.Errorf("%s: it is not known how to use it rightly", path)
			return
		}
		args := slices.Concat(strings.Fields(path)[1:], strings.Fields(usage))
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" || slices.Contains(anyText, f.Name) {
				return
			}
			if wrongValues[f.Name] == nil {
				t.Errorf("%s: it is not known what is wrong for --%s", path, f.Name)
			}
			for _, wrong := range wrongValues[f.Name] {
				err := run(append(slices.Clone(args), "--"+f.Name+"="+wrong)...)
				if failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), f.Name) {
					t.Errorf("%s --%s=%s: code %d, %v", path, f.Name, wrong, failure.Code(err), err)
				}
			}
		})
		if path == "varve repo create" || path == "varve repo connect" {
			return // they would work
		}
		if err := run(args...); failure.Code(err) != errclass.ExitNotFound {
			t.Errorf("%s without a wrong flag: code %d, %v", path, failure.Code(err), err)
		}
	})
}
