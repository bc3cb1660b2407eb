package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"os"
)

// TokenHeader is the header with the token, as KubeVirt's exports have it. A token anywhere else is ignored.
const TokenHeader = "X-Kubevirt-Export-Token"

// refusalsLogged is how many refused tokens are logged at once; then one a second is.
const refusalsLogged = 20

// ReadTokenFile returns a Config.Token that reads a file. White space around the token does not count: no header can
// have it.
func ReadTokenFile(path string) func() ([]byte, error) {
	return func() ([]byte, error) {
		text, err := os.ReadFile(path)
		return bytes.TrimSpace(text), err
	}
}

// checkToken refuses a request without the token. How long it takes tells nothing about the token.
func (s *Server) checkToken(r *http.Request) error {
	secret, err := s.Token()
	if err != nil || len(secret) == 0 {
		s.Log.Error("the export has no readable token", "error", err)
		s.Hooks.TokenRefused("unreadable")
		return refusef(http.StatusInternalServerError, "the server cannot read its token")
	}
	given := r.Header[TokenHeader]
	if len(given) != 1 || given[0] == "" {
		return s.refuseToken(r, "missing")
	}
	want, have := sha256.Sum256(secret), sha256.Sum256([]byte(given[0]))
	if subtle.ConstantTimeCompare(want[:], have[:]) != 1 {
		return s.refuseToken(r, "wrong")
	}
	return nil
}

func (s *Server) refuseToken(r *http.Request, reason string) error {
	if s.refusals.AllowN(s.Clock.Now(), 1) {
		s.Log.Warn("token refused", "reason", reason, "client", r.RemoteAddr, "method", shorten(r.Method), "path", shorten(r.URL.EscapedPath()))
	}
	s.Hooks.TokenRefused(reason)
	return refusef(http.StatusUnauthorized, "the token in the header %s is %s", "x-kubevirt-export-token", reason)
}

// shorten keeps what a client sends from filling the log.
func shorten(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
