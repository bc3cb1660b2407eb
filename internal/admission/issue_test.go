package admission

import (
	"testing"
	"time"
)

var hosts = []string{"varve-webhook.varve.svc", "127.0.0.1"}

func TestCertificate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 3, 16, 13, 28, 0, time.UTC)
	good, err := issueBundle(now, hosts)
	if err != nil {
		t.Fatal(err)
	}
	other, err := issueBundle(now, hosts)
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := renewBundle(now, hosts, good)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := renewBundle(now, hosts, renewed)
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name   string
		bundle bundle
		at     time.Time
		hosts  []string
		ok     bool
	}{
		{"fresh", *good, now, hosts, true},
		{"last moment before renewal", *good, now.Add(validity - renewBefore - time.Second), hosts, true},
		{"due", *good, now.Add(validity - renewBefore), hosts, false},
		{"a clock that is behind", *good, now.Add(-backdate + time.Second), hosts, true},
		{"another name", *good, now, []string{"elsewhere.svc"}, false},
		{"another authority", bundle{good.certificate, good.key, other.authorities}, now, hosts, false},
		{"another key", bundle{good.certificate, other.key, good.authorities}, now, hosts, false},
		{"nothing", bundle{}, now, hosts, false},
		{"garbage", bundle{[]byte("x"), []byte("y"), []byte("z")}, now, hosts, false},
		{"renewed", *renewed, now, hosts, true},
		{"old certificate, new bundle", bundle{good.certificate, good.key, renewed.authorities}, now, hosts, true},
		{"new certificate, old bundle", bundle{renewed.certificate, renewed.key, good.authorities}, now, hosts, false},
		{"only one authority back", bundle{good.certificate, good.key, twice.authorities}, now, hosts, false},
	}
	for _, c := range cases {
		if _, err := c.bundle.usableCertificate(c.at, c.hosts); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
