package storage

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/varvebackup/varve/internal/errclass"
)

// Role is a role whose keys open a bucket. A security token service (STS) gives them to whoever shows the token of an account that the role
// trusts (AWS Security Token Service API, AssumeRoleWithWebIdentity). They live for an hour or so. It holds no secret.
type Role struct {
	// ARN is the role's name, and STS the URL of the service.
	ARN string `json:"arn"`
	STS string `json:"sts"`
	// TokenFile has the token. Whoever writes it keeps it fresh: it is read whenever keys are asked for.
	TokenFile string `json:"tokenFile"`
}

// stsTimeout is how long an STS may take to answer.
const stsTimeout = 10 * time.Second

// RoleError says that a role gave no keys.
type RoleError struct {
	Role Role
	// Refused says that the STS has refused the role, and not that it did not answer, is busy, or that there is no token. Code is what it
	// said, such as AccessDenied.
	Refused bool
	Code    string
	// Text is what happened. It holds no token.
	Text string
}

func (e *RoleError) Error() string {
	if e.Refused {
		return fmt.Sprintf("role %s: STS %s refuses it: %s", e.Role.ARN, e.Role.STS, e.Text)
	}
	return fmt.Sprintf("role %s: no keys from STS %s: %s", e.Role.ARN, e.Role.STS, e.Text)
}

// Unwrap returns the error's class.
func (e *RoleError) Unwrap() error {
	if e.Refused {
		return errclass.Denied
	}
	return errclass.Transient
}

// ErrNoRole is of class Denied: there are neither keys nor a role. Nobody asks the node for the keys of its own role.
var ErrNoRole = errclass.New(errclass.Denied, "there are no keys, and no role: AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set")

// passingCodes are the codes of an STS that is busy or broken, and that of a token which the kubelet has to renew.
var passingCodes = []string{"IDPCommunicationError", "InternalError", "InternalFailure", "RequestTimeout", "ServiceUnavailable", "Throttling", "ThrottlingException", "ExpiredTokenException"}

// newKeys returns what gets the keys of the role, and new ones when four fifths of their life are over. rootCA is as S3.RootCA.
func (r Role) newKeys(rootCA []byte) (*credentials.Credentials, error) {
	if r.ARN == "" || r.TokenFile == "" {
		return nil, ErrNoRole
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // as net/http has it
	if len(rootCA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(rootCA)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	// A connection every hour is not worth keeping.
	transport.DisableKeepAlives = true
	return credentials.NewSTSWebIdentity(r.STS, r.readToken, func(i *credentials.STSWebIdentity) {
		i.RoleARN, i.Client = r.ARN, &http.Client{
			Transport: transport, Timeout: stsTimeout,
			// The token is for this service, and for nobody that it names.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
}

func (r Role) readToken() (*credentials.WebIdentityToken, error) {
	token, err := os.ReadFile(r.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read the token of the pod's account: %w", err)
	}
	return &credentials.WebIdentityToken{Token: strings.TrimSpace(string(token))}, nil
}

// explain returns the RoleError for what went wrong with the keys. An STS that repeats the token is not quoted.
func (r Role) explain(err error) error {
	e := &RoleError{Role: r, Text: err.Error()}
	var answer credentials.ErrorResponse
	if errors.As(err, &answer) && answer.STSError.Code != "" {
		e.Code = answer.STSError.Code
		e.Refused = answer.STSError.Type != "Receiver" && !slices.Contains(passingCodes, e.Code)
		e.Text = e.Code + ": " + e.Text
	}
	if token, _ := r.readToken(); token != nil && token.Token != "" {
		e.Text = strings.ReplaceAll(e.Text, token.Token, "[hidden]")
	}
	return e
}
