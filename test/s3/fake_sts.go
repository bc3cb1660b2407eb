package s3

import (
	"context"
	"crypto/rand"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// FakeSTS is a security token service that is faked: versitygw has none. It answers AssumeRoleWithWebIdentity as Amazon's does, with keys
// that are an account of the server until they expire; then the server knows them no more. There is no session token, which
// versitygw refuses. It does not verify signatures of tokens: it takes one token.
type FakeSTS struct {
	// URL is where it is, and Authority the certificate that verifies it.
	URL       string
	Authority []byte
	// Role is the only role that it has, and Token the only token that it takes.
	Role, Token string

	tb     testing.TB
	server *Server
	life   time.Duration

	mu      sync.Mutex
	issued  []string // access keys that are good
	count   int
	refusal string
}

// stsAnswer and stsError are what Amazon's API reference shows.
type stsAnswer struct {
	XMLName xml.Name  `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
	Access  string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
	Secret  string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>SecretAccessKey"`
	Expires time.Time `xml:"AssumeRoleWithWebIdentityResult>Credentials>Expiration"`
}

type stsError struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
	Type    string   `xml:"Error>Type"`
	Code    string   `xml:"Error>Code"`
	Message string   `xml:"Error>Message"`
}

// StartFakeSTS starts one in front of a server. Keys live for life. It ends with the test.
func StartFakeSTS(tb testing.TB, server *Server, life time.Duration) *FakeSTS {
	tb.Helper()
	f := &FakeSTS{Role: "arn:aws:iam::111122223333:role/varve-backups", Token: "token-" + rand.Text(), tb: tb, server: server, life: life}
	tb.Cleanup(f.forgetKeys) // after the last request
	h := httptest.NewTLSServer(f)
	tb.Cleanup(h.Close)
	f.URL = h.URL
	f.Authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return f
}

// Count returns how many times keys were handed out.
func (f *FakeSTS) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Refuse makes it refuse from now on with a code; "" ends that.
func (f *FakeSTS) Refuse(code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusal = code
}

// Revoke makes the server refuse all keys that were handed out.
func (f *FakeSTS) Revoke() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, access := range f.issued {
		f.remove(access)
	}
	f.issued = nil
}

// ServeHTTP implements http.Handler.
func (f *FakeSTS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	refuse := func(status int, code, message string) {
		w.WriteHeader(status)
		_ = xml.NewEncoder(w).Encode(stsError{Type: "Sender", Code: code, Message: message})
	}
	token := r.PostFormValue("WebIdentityToken")
	switch {
	case f.refusal != "":
		refuse(http.StatusForbidden, f.refusal, "refused, as the test wants it")
	case r.PostFormValue("Action") != "AssumeRoleWithWebIdentity" || r.PostFormValue("Version") != "2011-06-15":
		refuse(http.StatusBadRequest, "InvalidAction", "not AssumeRoleWithWebIdentity")
	case token != f.Token:
		refuse(http.StatusBadRequest, "InvalidIdentityToken", "the token "+token+" is not valid")
	case r.PostFormValue("RoleArn") != f.Role || r.PostFormValue("RoleSessionName") == "":
		refuse(http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
	default:
		f.count++
		a := stsAnswer{Access: rand.Text(), Secret: rand.Text(), Expires: time.Now().Add(f.life).UTC()}
		if err := f.admin("create-user", "--access", a.Access, "--secret", a.Secret, "--role", "admin"); err != nil {
			f.tb.Error(err)
		}
		f.issued = append(f.issued, a.Access)
		time.AfterFunc(f.life, func() { f.expire(a.Access) })
		_ = xml.NewEncoder(w).Encode(a)
	}
}

// forgetKeys lets keys live on: whoever tests has ended, and soon the server has, too.
func (f *FakeSTS) forgetKeys() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.issued = nil
}

func (f *FakeSTS) expire(access string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.issued, access); i >= 0 {
		f.issued = slices.Delete(f.issued, i, i+1)
		f.remove(access)
	}
}

func (f *FakeSTS) remove(access string) {
	if err := f.admin("delete-user", "--access", access); err != nil {
		f.tb.Log(err) // the server may have ended
	}
}

// admin runs versitygw's own client.
func (f *FakeSTS) admin(arguments ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.server.program, append([]string{"admin", "--allow-insecure", "--endpoint-url", f.server.URL(), "--region", f.server.Region}, arguments...)...)
	cmd.Env = append(os.Environ(), "ADMIN_ACCESS_KEY_ID="+f.server.AccessKey, "ADMIN_SECRET_ACCESS_KEY="+f.server.SecretKey)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", arguments[0], err, out)
	}
	return nil
}
