package authority

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	hosts  = []string{"virt-export-web.ns.svc", "virt-export-web.ns.svc.cluster.local"}
	start  = time.Date(2026, 3, 3, 16, 13, 28, 0, time.UTC)
	secret = types.NamespacedName{Namespace: "varve", Name: "varve-export-ca"}
)

// memory is a store with one Secret and optimistic concurrency, as the API server has it.
type memory struct {
	secret  *corev1.Secret
	version int
	// beforeWrite runs before the next write, in its place in time.
	beforeWrite func()
	// lost fails the next write before or after it is stored.
	lostBefore, lostAfter bool
}

var errLost = errors.New("the connection was lost")

func (m *memory) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if m.secret == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	m.secret.DeepCopyInto(into.(*corev1.Secret))
	return nil
}

func (m *memory) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	return m.write(o.(*corev1.Secret), func() error {
		if m.secret != nil {
			return apierrors.NewAlreadyExists(schema.GroupResource{}, o.GetName())
		}
		return nil
	})
}

func (m *memory) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	return m.write(o.(*corev1.Secret), func() error {
		if m.secret == nil || m.secret.ResourceVersion != o.GetResourceVersion() {
			return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("it has changed"))
		}
		return nil
	})
}

func (m *memory) write(s *corev1.Secret, check func() error) error {
	if f := m.beforeWrite; f != nil {
		m.beforeWrite = nil
		f()
	}
	if m.lostBefore {
		m.lostBefore = false
		return errLost
	}
	if err := check(); err != nil {
		return err
	}
	m.version++
	m.secret = s.DeepCopy()
	m.secret.ResourceVersion = strconv.Itoa(m.version)
	if m.lostAfter {
		m.lostAfter = false
		return errLost
	}
	return nil
}

// verify is what a client does that trusts authorities.
func verify(c Certificate, authorities []byte, now time.Time) error {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	for _, host := range hosts {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now}); err != nil {
			return err
		}
	}
	return nil
}

// ended reports whether a certificate is not valid any more.
func ended(t interface{ Fatal(...any) }, c Certificate, now time.Time) bool {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	return now.After(pair.Leaf.NotAfter)
}

// A year passes, a day at a time. A client that has read the authorities up to two weeks ago can always connect, and
// the authorities of now verify every certificate that has not ended.
func TestRotation_overAYear(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(start)
	k := NewKeeper(&memory{}, secret, clock)
	var lists [][]byte // of each day
	var issued []Certificate
	signers := map[string]bool{}
	for n := range 365 {
		clock.SetTime(start.Add(time.Duration(n) * day))
		issuer, err := k.Issuer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := issuer.Issue(hosts)
		if err != nil {
			t.Fatal(err)
		}
		issued, lists = append(issued, c), append(lists, issuer.Authorities())
		signers[string(issuer.state.present.certificate.Raw)] = true
		for _, age := range []int{0, 1, 14} {
			if age > n {
				break
			}
			if err := verify(c, lists[n-age], clock.Now()); err != nil {
				t.Fatalf("day %d, a client that read the authorities %d days ago: %v", n, age, err)
			}
		}
		issued = slices.DeleteFunc(issued, func(c Certificate) bool { return ended(t, c, clock.Now()) })
		for _, old := range issued {
			if err := verify(old, lists[n], clock.Now()); err != nil {
				t.Fatalf("day %d, an older certificate: %v", n, err)
			}
		}
		if got := len(decodeCertificates(lists[n])); got > 2 {
			t.Fatalf("day %d: %d authorities: the list grows", n, got)
		}
	}
	if len(signers) != 6 {
		t.Errorf("%d authorities have signed within a year, want 6", len(signers))
	}
}

// Two controllers, crashes before and after each write, and outages: whatever happens, the list that is stored verifies
// every certificate that anybody has issued and that has not ended.
func TestRotation_survivesRacesCrashesAndOutages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := testclock.NewFakePassiveClock(start)
		store := &memory{}
		one, other := NewKeeper(store, secret, clock), NewKeeper(store, secret, clock)
		var issued []Certificate
		use := func(k *Keeper) {
			issuer, err := k.Issuer(context.Background())
			if errors.Is(err, errLost) {
				return // the process ends here
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := issuer.Issue(hosts)
			if err != nil {
				t.Fatal(err)
			}
			issued = append(issued, c)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			clock.SetTime(clock.Now().Add(time.Duration(rapid.Int64Range(0, int64(100*day)).Draw(t, "pause"))))
			store.lostBefore, store.lostAfter = rapid.Bool().Draw(t, "lost before"), rapid.Bool().Draw(t, "lost after")
			if rapid.Bool().Draw(t, "race") {
				store.beforeWrite = func() { use(other) }
			}
			use(one)
			store.lostBefore, store.lostAfter, store.beforeWrite = false, false, nil
			use(other)
			for _, c := range issued {
				if ended(t, c, clock.Now()) {
					continue
				}
				if err := verify(c, store.secret.Data[AuthoritiesKey], clock.Now()); err != nil {
					t.Fatalf("the stored authorities do not verify a certificate that is in use: %v", err)
				}
			}
		}
	})
}

// After an outage until shortly before the authority's end, what is signed is valid for as long as it says.
func TestRotation_nothingOutlivesItsAuthority(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(start)
	k := NewKeeper(&memory{}, secret, clock)
	if _, err := k.Issuer(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(start.Add(validity - 12*time.Hour))
	issuer, err := k.Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := issuer.Issue(hosts)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(c, issuer.Authorities(), clock.Now().Add(serverValidity-time.Second)); err != nil {
		t.Error(err)
	}
	if got := len(decodeCertificates(issuer.Authorities())); got != 2 {
		t.Errorf("%d authorities: the one that signed until now must be trusted until it ends", got)
	}
}

// Two controllers that begin at once use the same authority.
func TestKeeper_loserOfARaceTakesTheWinnersAuthorities(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakePassiveClock(start)
	store := &memory{}
	one, other := NewKeeper(store, secret, clock), NewKeeper(store, secret, clock)
	var winner *Issuer
	store.beforeWrite = func() {
		var err error
		if winner, err = other.Issuer(t.Context()); err != nil {
			t.Error(err)
		}
	}
	loser, err := one.Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(loser.Authorities(), winner.Authorities()) || store.version != 1 {
		t.Errorf("two authorities after %d writes", store.version)
	}
}

// A Secret that somebody has damaged is mended, and what it still tells is still trusted.
func TestKeeper_mendsADamagedSecret(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(map[string][]byte){
		"no key":           func(d map[string][]byte) { delete(d, corev1.TLSPrivateKeyKey) },
		"another key":      func(d map[string][]byte) { d[corev1.TLSPrivateKeyKey] = d[nextPrivateKey] },
		"no list":          func(d map[string][]byte) { delete(d, AuthoritiesKey) },
		"no certificate":   func(d map[string][]byte) { delete(d, corev1.TLSCertKey) },
		"garbage for next": func(d map[string][]byte) { d[nextCertificateKey] = []byte("x") },
		"nothing":          func(map[string][]byte) {},
	} {
		clock := testclock.NewFakePassiveClock(start)
		store := &memory{}
		k := NewKeeper(store, secret, clock)
		if _, err := k.Issuer(t.Context()); err != nil {
			t.Fatal(err)
		}
		clock.SetTime(start.Add(validity - publishBefore + time.Hour)) // there is a next one
		before, err := k.Issuer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		old, err := before.Issue(hosts)
		if err != nil {
			t.Fatal(err)
		}
		damage(store.secret.Data)
		after, err := k.Issuer(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c, err := after.Issue(hosts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for what, certificate := range map[string]Certificate{"old": old, "new": c} {
			if err := verify(certificate, after.Authorities(), clock.Now()); err != nil {
				t.Errorf("%s: the %s certificate: %v", name, what, err)
			}
		}
	}
}

// issueCertificate returns an issuer with authorities of its own, and a certificate that it has just issued for hosts.
func issueCertificate(t *testing.T) (*Issuer, Certificate) {
	t.Helper()
	issuer, err := NewKeeper(&memory{}, secret, testclock.NewFakePassiveClock(start)).Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := issuer.Issue(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return issuer, c
}

func TestRenewalTime(t *testing.T) {
	t.Parallel()
	issuer, c := issueCertificate(t)
	at, err := issuer.RenewalTime(c, hosts)
	if want := start.Add(serverValidity - renewBefore); err != nil || !at.Equal(want) {
		t.Errorf("renewal at %s, %v, want %s", at, err, want)
	}
	stranger, _ := issueCertificate(t)
	other, err := issuer.Issue(hosts)
	if err != nil {
		t.Fatal(err)
	}
	later := &Issuer{state: issuer.state, now: start.Add(serverValidity + time.Second)}
	for name, f := range map[string]func() error{
		"another authority": func() error { _, err := stranger.RenewalTime(c, hosts); return err },
		"another name":      func() error { _, err := issuer.RenewalTime(c, []string{hosts[0], "elsewhere.svc"}); return err },
		"no name":           func() error { _, err := issuer.RenewalTime(c, nil); return err },
		"another key":       func() error { _, err := issuer.RenewalTime(Certificate{c.Certificate, other.Key}, hosts); return err },
		"nothing":           func() error { _, err := issuer.RenewalTime(Certificate{}, hosts); return err },
		"ended":             func() error { _, err := later.RenewalTime(c, hosts); return err },
	} {
		if f() == nil {
			t.Errorf("%s: usable", name)
		}
	}
}

func TestTimeLeft(t *testing.T) {
	t.Parallel()
	issuer, c := issueCertificate(t)
	data := issuer.SecretData(c)
	if left := issuer.TimeLeft(data, hosts); left != serverValidity-renewBefore {
		t.Errorf("%s left of a new certificate, want %s", left, serverValidity-renewBefore)
	}
	due := &Issuer{state: issuer.state, now: start.Add(serverValidity - renewBefore)}
	otherAuthorities := maps.Clone(data)
	otherAuthorities[AuthoritiesKey] = append(issuer.Authorities(), '\n')
	for name, left := range map[string]time.Duration{
		"due": due.TimeLeft(data, hosts), "other authorities": issuer.TimeLeft(otherAuthorities, hosts),
		"another name": issuer.TimeLeft(data, []string{"elsewhere.svc"}), "no data": issuer.TimeLeft(nil, hosts),
	} {
		if left != 0 {
			t.Errorf("%s: %s left", name, left)
		}
	}
}

// A client verifies by the rules of crypto/tls, with the names of a link.
func TestIssue_namesOfAnyLength(t *testing.T) {
	t.Parallel()
	issuer, err := NewKeeper(&memory{}, secret, testclock.NewFakePassiveClock(start)).Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	long := "virt-export-" + string(bytes.Repeat([]byte("x"), 51)) + ".namespace.svc"
	c, err := issuer.Issue([]string{long})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := issuer.RenewalTime(c, []string{long}); err != nil {
		t.Error(err)
	}
}

// A peer's certificate is a server's and a client's, and any other one is a server's alone.
func TestIssuePeer(t *testing.T) {
	t.Parallel()
	issuer, err := NewKeeper(&memory{}, secret, testclock.NewFakePassiveClock(start)).Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(issuer.Authorities())
	for name, c := range map[string]struct {
		issue  func([]string) (Certificate, error)
		client bool
	}{"peer": {issuer.IssuePeer, true}, "server": {issuer.Issue, false}} {
		certificate, err := c.issue(hosts)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certificate.Certificate, certificate.Key)
		if err != nil {
			t.Fatal(err)
		}
		for usage, want := range map[x509.ExtKeyUsage]bool{
			x509.ExtKeyUsageServerAuth: true, x509.ExtKeyUsageClientAuth: c.client,
		} {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{
				DNSName: hosts[0], Roots: roots, CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{usage},
			})
			if (err == nil) != want {
				t.Errorf("%s, usage %d: %v", name, usage, err)
			}
		}
	}
}
