package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
)

func TestCodeAndHint(t *testing.T) {
	t.Parallel()
	backups := schema.GroupResource{Group: "backup.kubevirt.io", Resource: "virtualmachinebackups"}
	missingKind := &apierrors.StatusError{ErrStatus: metav1.Status{
		Reason: metav1.StatusReasonNotFound, Code: 404, Message: "the server could not find the requested resource",
		Details: &metav1.StatusDetails{Kind: backups.Resource, Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}},
	}}
	for name, c := range map[string]struct {
		err  error
		code int
		hint string
	}{
		"nothing":       {nil, 0, ""},
		"unknown":       {errors.New("x"), 1, ""},
		"not installed": {missingKind, 1, "install Varve"},
		"not found":     {apierrors.NewNotFound(backups, "b"), 3, "check the name"},
		"exists":        {apierrors.NewAlreadyExists(backups, "b"), 5, "another name"},
		"conflict":      {apierrors.NewConflict(backups, "b", errors.New("x")), 5, "run the command again"},
		"forbidden":     {apierrors.NewForbidden(backups, "b", errors.New("x")), 5, "varve-edit"},
		"unauthorized":  {apierrors.NewUnauthorized("x"), 5, "log in"},
		"invalid":       {apierrors.NewBadRequest(`strict decoding error: unknown field "spec.foo"`), 5, ""},
		"deadline":      {context.DeadlineExceeded, 4, ""},
		"interrupted":   {context.Canceled, 130, ""},
		"no server":     {&url.Error{Op: "Get", URL: "https://x", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, 6, "--context"},
		"two of them":   {errors.Join(apierrors.NewNotFound(backups, "a"), apierrors.NewNotFound(backups, "b")), 3, "check the name"},
	} {
		wrapped := c.err
		if c.err != nil {
			wrapped = fmt.Errorf("do it: %w", c.err)
		}
		if got := failure.Code(wrapped); got != c.code {
			t.Errorf("%s: code %d, want %d", name, got, c.code)
		}
		var out bytes.Buffer
		cli.Report(&out, wrapped, "varve")
		if c.err != nil && !strings.Contains(out.String(), "error: do it: ") {
			t.Errorf("%s: reported as %q", name, out.String())
		}
		if c.hint == "" && strings.Contains(out.String(), "hint:") || !strings.Contains(out.String(), c.hint) {
			t.Errorf("%s: reported as %q, want the hint %q", name, out.String(), c.hint)
		}
	}
}

// What the server says may contain what somebody else wrote into an object.
func TestReportIsSafeForTerminals(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cli.Report(&out, errors.New("a\x1b[2Jb\nc"), "varve")
	if got := out.String(); got != "error: a [2Jb\n       c\n" {
		t.Errorf("reported as %q", got)
	}
}

// A command in a text begins as the user types it.
func TestReport_namesThePlugin(t *testing.T) {
	t.Parallel()
	backups := schema.GroupResource{Group: "backup.kubevirt.io", Resource: "virtualmachinebackups"}
	for _, c := range []struct{ program, want string }{
		{"varve", "error: use `varve vm list`: "}, {"kubectl-varve", "error: use `kubectl varve vm list`: "},
	} {
		var out bytes.Buffer
		cli.Report(&out, fmt.Errorf("use `varve vm list`: %w", apierrors.NewNotFound(backups, "b")), c.program)
		if !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%s: reported as %q", c.program, out.String())
		}
	}
}
