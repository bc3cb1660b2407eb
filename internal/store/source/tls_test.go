package source_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/source"
)

// serveTLS serves on https, and returns the address and the certificate that it is trusted by.
func serveTLS(t *testing.T, h http.Handler) (url, certificate string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/disk.img", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func TestRun_trustsTheGivenAuthorityAlone(t *testing.T) {
	t.Parallel()
	content := image(mib)
	url, certificate := serveTLS(t, &server{content: content})
	for name, c := range map[string]struct {
		certificate string
		want        error
	}{
		"its own":      {certificate, nil},
		"the system's": {"", errclass.Denied},
		"not PEM":      {"certificate", errclass.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			device := newDevice(t)
			err := run(t, device, url, func(o *source.Options) {
				o.Config, o.Transport = download(url, c.certificate), nil
			})
			if c.want != nil {
				wantFailure(t, err, c.want, "ertificate")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, content)
		})
	}
}

func TestRun_followsNoRedirectThatIsUnsafe(t *testing.T) {
	t.Parallel()
	plain := serve(t, &server{content: image(mib)})
	toPlain, certificate := serveTLS(t, http.RedirectHandler(plain, http.StatusFound))
	endless := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
	}))
	for name, c := range map[string]struct{ url, words string }{
		"to http": {toPlain, "from https to http"}, "endless": {endless, "more than 10 times"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t, newDevice(t), c.url, func(o *source.Options) {
				o.Config, o.Transport = download(c.url, certificate), nil
			})
			wantFailure(t, err, errclass.Invalid, c.words)
		})
	}
}

// A server that sends nothing for 30 seconds is as good as gone.
func TestRun_continuesAfterASilence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent int64 // requests
		words  string
	}{"once": {1, ""}, "for good": {1 << 30, "the server sent nothing for 30s"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := image(mib)
			whole := &server{content: content}
			fake := &steppedClock{FakeClock: clocktesting.NewFakeClock(time.Unix(0, 0))}
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if whole.requests.Load() >= c.silent {
					whole.ServeHTTP(w, r)
					return
				}
				whole.requests.Add(1)
				w.Header().Set("ETag", `"one"`)
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
				w.Header().Set("Content-Length", fmt.Sprint(len(content)))
				w.WriteHeader(http.StatusPartialContent)
				w.(http.Flusher).Flush()
				fake.pass(r.Context().Done())
			}))
			device := newDevice(t)
			err := run(t, device, url, func(o *source.Options) { o.Clock = fake })
			if c.words != "" {
				wantFailure(t, err, errclass.Transient, c.words)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, content)
		})
	}
}

// steppedClock is a clock whose pauses are over at once, and that passes only when it is told to.
type steppedClock struct{ *clocktesting.FakeClock }

// NewTimer implements clock.Clock.
func (c *steppedClock) NewTimer(time.Duration) clock.Timer { return clock.RealClock{}.NewTimer(0) }

// pass lets time pass until done.
func (c *steppedClock) pass(done <-chan struct{}) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			c.Step(stepTime)
		}
	}
}

const stepTime = time.Second
