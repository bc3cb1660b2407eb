package repositoryaccess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

func TestSecrets_leaveInNoForm(t *testing.T) {
	t.Parallel()
	secrets := []string{"plain-secret", `with "quotes" & <more>`, "über\ngeheim", "a/b+c=d%20", "", "plain-secret-and-more"}
	s := &Secrets{}
	if got := s.Redact("nothing"); got != "nothing" {
		t.Error(got)
	}
	s.Hide(secrets[:2]...)
	s.Hide(secrets[2:]...)
	var out bytes.Buffer
	to := s.Writer(&out)
	text, structured := slog.New(slog.NewTextHandler(to, nil)), slog.New(slog.NewJSONHandler(to, nil))
	for _, secret := range secrets {
		text.Info(secret, "error", fmt.Errorf("open %q: %s", secret, secret))
		structured.Info(secret, "error", fmt.Errorf("open %q: %s", secret, secret))
		fmt.Fprintln(to, url.QueryEscape(secret), url.PathEscape(secret), secret)
		quoted, _ := json.Marshal(secret)
		fmt.Fprintln(to, string(quoted))
	}
	for _, word := range []string{"plain-secret", "quotes", "geheim", "b+c", "%2Bc", "d%20", "and-more"} {
		if strings.Contains(out.String(), word) {
			t.Errorf("%q is in %s", word, out.String())
		}
	}
	if n, err := to.Write([]byte("plain-secret\n")); n != len("plain-secret\n") || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
