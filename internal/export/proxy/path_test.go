package proxy

import (
	"net/url"
	"regexp"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/authority"
)

// hosts are those of exports, and nothing else.
var hosts = regexp.MustCompile(`^virt-export-[a-z0-9]([a-z0-9-]*[a-z0-9])?\.[a-z0-9]([a-z0-9-]*[a-z0-9])?\.svc$`)

// The export answers its readiness path to everybody, and compares it without escapes.
func TestParseTarget_refusesReadinessInAnySpelling(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/exportready": false, "/%65xportready": false, "/exportread%79": false, "/volumes/disk/disk.img": true, "/exportready2": true, "/%2565xportready": true,
	} {
		u, err := url.ParseRequestURI(podspec.ProxyPath("ns", "web") + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parseTarget(u); ok != want {
			t.Errorf("%s is passed on: %v, want %v", path, ok, want)
		}
	}
}

// FuzzParseTarget: whatever a client sends, only an export is asked, and for what the client asks.
func FuzzParseTarget(f *testing.F) {
	for _, path := range []string{
		podspec.ProxyPath("ns", "web") + "/volumes/disk/disk.img", podspec.ProxyPrefix + "a/virtualmachineexports/b.c/%2e%2e/x?y=z", podspec.ProxyPrefix + "../../x/y/z",
		podspec.ProxyPrefix + "a%2Fb/virtualmachineexports/c/d", podspec.ProxyPrefix + "a/virtualmachineexports/c@d:1/e", "//host" + podspec.ProxyPrefix, podspec.ProxyPrefix + "ns/virtualmachineexports/web/%",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.ParseRequestURI(text)
		if err != nil {
			return
		}
		target, ok := parseTarget(u)
		if !ok {
			return
		}
		to, err := target.url(u.RawQuery)
		if err != nil {
			return
		}
		if !hosts.MatchString(to.Host) || to.User != nil || to.EscapedPath() != target.path || target.path[0] != '/' ||
			podspec.ProxyPath(target.namespace, target.export)+target.path != u.EscapedPath() || to.Path == podspec.ReadinessPath {
			t.Errorf("%q leads to %q", text, to)
		}
	})
}

// The kubelet replaces the file while the proxy runs.
func TestAuthorities_areReadAgain(t *testing.T) {
	t.Parallel()
	first, second := authority.New(t), authority.New(t)
	path := t.TempDir() + "/ca.crt"
	clock := testclock.NewFakePassiveClock(time.Now())
	a := &authorityFile{path: path, clock: clock}
	if _, err := a.get(); err == nil {
		t.Error("no authorities, and no error")
	}
	writeAuthorities(t, path, first)
	for _, want := range []*authority.Authority{first, second} {
		writeAuthorities(t, path, want)
		clock.SetTime(clock.Now().Add(authoritiesAge))
		if got, err := a.get(); err != nil || !got.Equal(want.Client.RootCAs) {
			t.Errorf("other authorities: %v", err)
		}
	}
	a.path = "gone"
	clock.SetTime(clock.Now().Add(authoritiesAge))
	if got, err := a.get(); err != nil || !got.Equal(second.Client.RootCAs) {
		t.Errorf("the known authorities are lost: %v", err)
	}
}
