package cli_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
)

// The keys come from the role's endpoint, and sign the requests to S3.
func TestS3Role_givesTheKeys(t *testing.T) {
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"AccessKeyId":"OFTHEROLE","SecretAccessKey":"s","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer role.Close()
	var signed atomic.Bool
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Authorization"), "Credential=OFTHEROLE/") && r.Header.Get("X-Amz-Security-Token") == "t" {
			signed.Store(true)
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer s3.Close()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	connect := func(keys string, args ...string) error {
		var out bytes.Buffer
		root := cli.New(cli.Options{
			Program: "varve", Streams: session.Streams{In: strings.NewReader(""), Out: &out, Err: &out}, Now: time.Now,
			Env: func(name string) string {
				return map[string]string{"VARVE_REPO_CONFIG": filepath.Join(t.TempDir(), "config"), "VARVE_PASSWORD": "p", "AWS_ACCESS_KEY_ID": keys}[name]
			},
		})
		root.SetArgs(append([]string{"repo", "connect", "s3://" + strings.TrimPrefix(s3.URL, "http://") + "/bucket", "--s3-plain-http", "--s3-region", "us-east-1"}, args...))
		return root.ExecuteContext(t.Context())
	}
	if err := connect(""); failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), "--s3-role") {
		t.Errorf("without keys: %v", err)
	}
	if err := connect("KEY", "--s3-role"); failure.Code(err) != errclass.ExitUsage {
		t.Errorf("with keys and a role: %v", err)
	}
	if err := connect("", "--s3-role"); failure.Code(err) != errclass.ExitRefused || !signed.Load() {
		t.Errorf("code %d, %v; the role's keys were used: %v", failure.Code(err), err, signed.Load())
	}
}
