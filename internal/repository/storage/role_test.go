package storage

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
)

// fakeAmazon is an STS and a bucket without objects, both faked, on one server.
type fakeAmazon struct {
	*httptest.Server

	sts      func(w http.ResponseWriter, r *http.Request)
	sessions chan string // the session tokens of requests to the bucket
}

func newFakeAmazon(t *testing.T) *fakeAmazon {
	t.Helper()
	f := &fakeAmazon{sessions: make(chan string, 100)}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f.sts(w, r)
			return
		}
		f.sessions <- r.Header.Get("X-Amz-Security-Token")
		w.Header().Set("Content-Type", "application/xml")
		if r.URL.Query().Has("list-type") {
			_, _ = io.WriteString(w, `<ListBucketResult><Name>b</Name></ListBucketResult>`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `<Error><Code>NoSuchKey</Code></Error>`)
	}))
	t.Cleanup(f.Close)
	return f
}

func giveKeys(w http.ResponseWriter, session string) {
	_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
		<AccessKeyId>ASIAX</AccessKeyId><SecretAccessKey>secretTESTONLY</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration>
		</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, session, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func (f *fakeAmazon) location(t *testing.T, edit func(*S3)) Location {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("jwtTESTONLY"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := Location{S3: &S3{
		Endpoint: strings.TrimPrefix(f.URL, "https://"), Bucket: "bucket", Region: "r", Prefix: "p/",
		RootCA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
		Role:   &Role{ARN: "arn:aws:iam::1:role/r", STS: f.URL, TokenFile: token},
	}}
	if edit != nil {
		edit(at.S3)
	}
	return at
}

// The session token goes along, keys are asked for once in their life, and a connection's configuration has none of them.
func TestRole_usesSessionTokens(t *testing.T) {
	t.Parallel()
	f := newFakeAmazon(t)
	Register()
	var asked atomic.Int64
	f.sts = func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		giveKeys(w, "sessionTESTONLY")
	}
	st, err := f.location(t, nil).Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := st.GetMetadata(t.Context(), "x"); !errors.Is(err, blob.ErrBlobNotFound) {
			t.Error(err)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("keys were asked for %d times", asked.Load())
	}
	if got := <-f.sessions; got != "sessionTESTONLY" {
		t.Errorf("session token %q", got)
	}
	config, err := json.Marshal(st.ConnectionInfo())
	if err != nil || strings.Contains(string(config), "TESTONLY") || strings.Contains(string(config), "ASIAX") {
		t.Errorf("%s %v", config, err)
	}
	var again blob.ConnectionInfo
	if err := json.Unmarshal(config, &again); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenConnected(t.Context(), again); err != nil {
		t.Error(err)
	}
	if err := CheckReachable(t.Context(), again, 0); err != nil {
		t.Error(err)
	}
}

// What goes wrong is said with the role and the STS, and without the token.
func TestRole_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "TOKEN", r.PostFormValue("WebIdentityToken")))
		}
	}
	const refusal = `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>%s</Type><Code>%s</Code><Message>about TOKEN</Message></Error></ErrorResponse>`
	for name, c := range map[string]struct {
		sts   func(http.ResponseWriter, *http.Request)
		edit  func(*S3)
		class error
		says  string
	}{
		"refused":    {answer(403, fmt.Sprintf(refusal, "Sender", "AccessDenied")), nil, errclass.Denied, "AccessDenied: about [hidden]"},
		"busy":       {answer(503, fmt.Sprintf(refusal, "Receiver", "ServiceUnavailable")), nil, errclass.Transient, "ServiceUnavailable"},
		"not an STS": {answer(404, "<html>"), nil, errclass.Transient, ""},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, nil, errclass.Transient, ""},
		"no keys":        {answer(200, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"></AssumeRoleWithWebIdentityResponse>`), nil, errclass.Transient, "no keys"},
		"no token":       {answer(500, ""), func(s *S3) { s.Role.TokenFile = "/nonexistent" }, errclass.Transient, "read the token of the pod's account"},
		"nobody there":   {answer(500, ""), func(s *S3) { s.Role.STS = "https://127.0.0.1:1" }, errclass.Transient, "127.0.0.1:1"},
		"no role at all": {answer(500, ""), func(s *S3) { s.Role = &Role{STS: s.Role.STS} }, errclass.Denied, "AWS_ROLE_ARN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAmazon(t)
			f.sts = c.sts
			at := f.location(t, c.edit)
			_, err := at.Open(t.Context(), false)
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "jwtTESTONLY") {
				t.Fatalf("%v", err)
			}
			if at.S3.Role.ARN != "" && (!strings.Contains(err.Error(), at.S3.Role.ARN) || !strings.Contains(err.Error(), at.S3.Role.STS)) {
				t.Errorf("%v", err)
			}
			if len(f.sessions) > 0 {
				t.Error("the bucket was asked without keys")
			}
		})
	}
}
