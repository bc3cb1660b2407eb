package tunnel

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
)

// states collects what a launcher reports.
type states struct {
	mu   sync.Mutex
	last State
	all  chan State
}

func watchStates(c *Config) *states {
	s := &states{all: make(chan State, 1000)}
	c.StateChanged = func(now State) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = now
		select {
		case s.all <- now:
		default:
		}
	}
	return s
}

// await returns the first state that fits.
func (s *states) await(tb testing.TB, fits func(State) bool) State {
	tb.Helper()
	timeout := time.NewTimer(testTimeout)
	defer timeout.Stop()
	for {
		select {
		case now := <-s.all:
			if fits(now) {
				return now
			}
		case <-timeout.C:
			tb.Fatal("the state did not come")
		}
	}
}

func offeredDisk() export.Volume { return exporttest.NewVolume("disk", 1<<20, false, 1) }

// waitUntil waits for something that no channel tells.
func waitUntil(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(testTimeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited in vain for: %s", what)
		}
	}
}

// A launcher that is not let in, or that does not let itself in, tries for ever, says why, and costs nothing else.
func TestHandshake_refusals(t *testing.T) {
	t.Parallel()
	otherCA := newAuthority(t)
	token := func(token []byte) func() ([]byte, error) { return func() ([]byte, error) { return token, nil } }
	proofs := func(c Counters) int64 { return c.RefusedProofs }
	failed := func(c Counters) int64 { return c.FailedHandshakes }
	for name, c := range map[string]struct {
		server  func(*Server)
		config  func(*Config)
		class   errclass.Class
		counted func(Counters) int64
	}{
		"another CA": {config: func(c *Config) { c.CA = otherCA.pool }, class: errclass.Denied, counted: failed},
		"no CA": {config: func(c *Config) {
			c.CA = func() (*x509.CertPool, error) { return nil, nil }
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("it dials all the same")
			}
		}, class: errclass.Denied},
		"CA that cannot be read":     {config: func(c *Config) { c.CA = func() (*x509.CertPool, error) { return nil, io.ErrClosedPipe } }},
		"another name":               {config: func(c *Config) { c.ServerName = "other.example" }, class: errclass.Denied, counted: failed},
		"wrong token":                {config: func(c *Config) { c.Token = token([]byte("wrong")) }, class: errclass.Denied, counted: proofs},
		"empty token":                {config: func(c *Config) { c.Token = token(nil) }, class: errclass.Denied, counted: failed},
		"empty token at the far end": {server: func(s *Server) { s.Token = token(nil) }, class: errclass.Denied, counted: proofs},
		"no token at the far end":    {server: func(s *Server) { s.Token = func() ([]byte, error) { return rightToken(), io.ErrClosedPipe } }, class: errclass.Denied, counted: proofs},
		"empty tokens": {
			server: func(s *Server) { s.Token = token(nil) }, config: func(c *Config) { c.Token = token([]byte{}) }, class: errclass.Denied, counted: failed,
		},
		"token of another backup": {config: func(c *Config) { c.Token = token(Token(testKey, "another")) }, class: errclass.Denied, counted: proofs},
		"another backup": {
			config: func(c *Config) { c.BackupUID, c.Token = "another", token(Token(testKey, "another")) }, class: errclass.Denied, counted: proofs,
		},
		"another backup with this one's token": {config: func(c *Config) { c.BackupUID = "another" }, class: errclass.Denied, counted: proofs},
		"TLS 1.2": {
			server: func(s *Server) {
				old := s.TLS.Clone()
				old.MaxVersion = tls.VersionTLS12
				s.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return old, nil }
			}, class: errclass.Transient, counted: failed,
		},
		"nobody there": {config: func(c *Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe }
		}, class: errclass.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.server)
			cfg := r.config()
			if c.config != nil {
				c.config(&cfg)
			}
			seen := watchStates(&cfg)
			stop := launch(t, cfg, offeredDisk())
			last := seen.await(t, func(s State) bool { return s.Attempts >= 3 })
			stop()
			if last.Connected || last.Sessions != 0 || last.Err == nil || errclass.Of(last.Err) != c.class {
				t.Errorf("%+v, of class %v", last, errclass.Of(last.Err))
			}
			if r.server.Connected() || r.server.Counters().Sessions != 0 {
				t.Error("the launcher was let in")
			}
			if c.counted != nil {
				waitUntil(t, "the count", func() bool { return c.counted(r.server.Counters()) >= 2 })
			}
		})
	}
}

func rightToken() []byte { return Token(testKey, testUID) }

// dialRaw returns a TLS connection to the server that has said nothing yet.
func (r *rig) dialRaw(tb testing.TB) *tls.Conn {
	tb.Helper()
	nc, err := new(net.Dialer).DialContext(tb.Context(), "tcp", r.address)
	if err != nil {
		tb.Fatal(err)
	}
	pool, _ := r.ca.pool()
	c := tls.Client(nc, &tls.Config{RootCAs: pool, ServerName: testName, NextProtos: []string{protocolName}})
	tb.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(testTimeout))
	if err := c.HandshakeContext(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return c
}

// The server takes no older TLS and no other protocol, although the configuration that it was given would.
func TestHandshake_serverInsistsOnTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *Server) {
		s.Limits.HandshakeTimeout = 2 * testTimeout
		lax := s.TLS.Clone()
		lax.NextProtos = []string{protocolName, "h2"}
		s.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return lax, nil }
	})
	pool, _ := r.ca.pool()
	for name, cfg := range map[string]*tls.Config{
		"TLS 1.2":          {MaxVersion: tls.VersionTLS12, NextProtos: []string{protocolName}},
		"another protocol": {NextProtos: []string{"h2"}},
		"no protocol":      {},
	} {
		nc, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(testTimeout))
		cfg.RootCAs, cfg.ServerName = pool, testName
		c := tls.Client(nc, cfg)
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Write(goodHello(1, 1).encode()) // it is not read
		if rest, err := io.ReadAll(c); len(rest) > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %x, %v", name, rest, err)
		}
	}
	waitUntil(t, "the count", func() bool { return r.server.Counters().FailedHandshakes == 3 })
	if c := r.server.Counters(); c.RefusedProofs != 0 {
		t.Errorf("%+v", c)
	}
}

func goodHello(id byte, session uint64) hello {
	return hello{lowest: 1, highest: 1, launcher: [launcherIDBytes]byte{id}, session: session, uid: testUID}
}

// proven returns h with its proof for a connection.
func proven(tb testing.TB, c *tls.Conn, h hello) []byte {
	tb.Helper()
	binding, err := channelBinding(c)
	if err != nil {
		tb.Fatal(err)
	}
	said := h.encode()
	return append(said, makeProof(rightToken(), roleLauncher, binding, said)...)
}

// answerTo sends a hello with a proof, and returns the welcome.
func answerTo(tb testing.TB, c *tls.Conn, said []byte) welcome {
	tb.Helper()
	if _, err := c.Write(said); err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, welcomeBytes+proofBytes)
	if _, err := io.ReadFull(c, b); err != nil {
		tb.Fatal(err)
	}
	w, err := parseWelcome(b[:welcomeBytes])
	if err != nil {
		tb.Fatal(err)
	}
	if w.refusal != accepted && !bytes.Equal(b[welcomeBytes:], make([]byte, proofBytes)) {
		tb.Error("a proof came with a refusal")
	}
	return w
}

// expectEnd fails unless the server ends the connection without another word.
func expectEnd(tb testing.TB, c *tls.Conn) {
	tb.Helper()
	if rest, err := io.ReadAll(c); len(rest) > 0 || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
		tb.Errorf("%x, %v", rest, err)
	}
}

// What was right on one connection is wrong on every other one, and for every other role, version and backup.
func TestProof_isNotReplayed(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	var mu sync.Mutex
	r := newRig(t, func(s *Server) { s.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &logged}, nil)) })
	first := r.dialRaw(t)
	said := proven(t, first, goodHello(1, 1))
	if w := answerTo(t, first, said); w.refusal != accepted {
		t.Fatalf("the right proof: %+v", w)
	}
	first.Close()
	waitUntil(t, "the end of the first", func() bool { return r.server.Counters().Lost == 1 })
	for name, change := range map[string]func(c *tls.Conn) []byte{
		"as it was": func(*tls.Conn) []byte { return said },
		"for another session": func(c *tls.Conn) []byte {
			own := proven(t, c, goodHello(1, 2))
			return append(goodHello(1, 3).encode(), own[len(own)-proofBytes:]...)
		},
		"for other versions": func(c *tls.Conn) []byte {
			own, h := proven(t, c, goodHello(1, 2)), goodHello(1, 2)
			h.highest = 9
			return append(h.encode(), own[len(own)-proofBytes:]...)
		},
		"for another role": func(c *tls.Conn) []byte {
			binding, _ := channelBinding(c)
			h := goodHello(1, 2).encode()
			return append(h, makeProof(rightToken(), roleReader, binding, h)...)
		},
		"with a bit less": func(c *tls.Conn) []byte {
			own := proven(t, c, goodHello(1, 2))
			own[len(own)-1] ^= 1
			return own
		},
	} {
		before := r.server.Counters().RefusedProofs
		c := r.dialRaw(t)
		if w := answerTo(t, c, change(c)); w.refusal != refusedProof {
			t.Errorf("%s: %+v", name, w)
		}
		expectEnd(t, c)
		if now := r.server.Counters().RefusedProofs; now != before+1 {
			t.Errorf("%s: %d refused proofs after %d", name, now, before)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(logged.String(), "its proof is wrong") || bytes.Contains(logged.Bytes(), rightToken()) {
		t.Errorf("logged: %s", logged.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func TestProof_needsAToken(t *testing.T) {
	t.Parallel()
	for _, token := range [][]byte{nil, {}, Token(nil, testUID), Token([]byte{}, testUID), Token(testKey, "")} {
		if isProof(makeProof(token, roleLauncher, nil), token, roleLauncher, nil) {
			t.Errorf("a proof with the token %x", token)
		}
	}
	if bytes.Equal(Token(testKey, "a"), Token(testKey, "b")) || bytes.Equal(Token([]byte("a"), testUID), Token([]byte("b"), testUID)) {
		t.Error("one token for two backups, or of two installations")
	}
	// What is proven has one reading only: moving a byte from one part to the next makes another proof.
	if bytes.Equal(makeProof(testKey, roleLauncher, []byte("ab"), []byte("c")), makeProof(testKey, roleLauncher, []byte("a"), []byte("bc"))) {
		t.Error("parts run into each other")
	}
}

func TestHandshake_versionsAreNegotiated(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for session, c := range []struct {
		lowest, highest uint16
		want            welcome
	}{
		{1, 7, welcome{version: 1, lowest: 1, highest: 1}},
		{2, 7, welcome{refusal: refusedVersion, lowest: 1, highest: 1}},
	} {
		conn := r.dialRaw(t)
		h := goodHello(1, uint64(session)+1)
		h.lowest, h.highest = c.lowest, c.highest
		if w := answerTo(t, conn, proven(t, conn, h)); w != c.want {
			t.Errorf("versions %d to %d: %+v", c.lowest, c.highest, w)
		}
	}
	waitUntil(t, "the count", func() bool { return r.server.Counters().RefusedVersions == 1 })
	if err := refusalError(welcome{refusal: refusedVersion, lowest: 2, highest: 3}, testUID); !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), "versions 2 to 3") {
		t.Error(err)
	}
}

// impostor is a far end with the right certificate that says what answer returns.
func impostor(t *testing.T, ca *authority, answer func(c *tls.Conn, said []byte) []byte) (address string, heard chan []byte) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", func() *tls.Config {
		c := ca.serverConfig(t, testName)
		c.NextProtos = []string{protocolName}
		return c
	}())
	if err != nil {
		t.Fatal(err)
	}
	heard = make(chan []byte, 100)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			c := nc.(*tls.Conn)
			c.SetDeadline(time.Now().Add(testTimeout))
			if _, said, err := readHello(c); err == nil {
				proof := make([]byte, proofBytes)
				io.ReadFull(c, proof)
				c.Write(answer(c, append(said, proof...)))
				rest, _ := io.ReadAll(c)
				heard <- rest
			}
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String(), heard
}

// A far end that does not hold the token learns nothing but a hello, whatever it answers.
func TestHandshake_farEndProvesItself(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	good := welcome{version: 1, lowest: 1, highest: 1}.encode()
	hasToken := func(w welcome) func(*tls.Conn, []byte) []byte {
		return func(c *tls.Conn, said []byte) []byte {
			binding, _ := channelBinding(c)
			b := w.encode()
			return append(b, makeProof(rightToken(), roleReader, binding, said[:len(said)-proofBytes], b)...)
		}
	}
	for name, c := range map[string]struct {
		answer func(*tls.Conn, []byte) []byte
		class  errclass.Class
	}{
		"no proof": {func(*tls.Conn, []byte) []byte { return append(good[:len(good):len(good)], make([]byte, proofBytes)...) }, errclass.Denied},
		"the launcher's own": {func(_ *tls.Conn, said []byte) []byte {
			return append(good[:len(good):len(good)], said[len(said)-proofBytes:]...)
		}, errclass.Denied},
		"no protocol": {func(*tls.Conn, []byte) []byte { return bytes.Repeat([]byte("HTTP"), 100) }, errclass.None},
		"nothing":     {func(*tls.Conn, []byte) []byte { return nil }, errclass.None},
		"a refusal": {func(*tls.Conn, []byte) []byte {
			return append(welcome{refusal: refusedConflict}.encode(), make([]byte, proofBytes)...)
		}, errclass.Conflict},
		"an unknown refusal": {func(*tls.Conn, []byte) []byte {
			return append(welcome{refusal: 99}.encode(), make([]byte, proofBytes)...)
		}, errclass.None},
		"yes and no": {func(*tls.Conn, []byte) []byte {
			return append(welcome{version: 1, refusal: 1}.encode(), make([]byte, proofBytes)...)
		}, errclass.None},
		"a version not asked": {hasToken(welcome{version: 2}), errclass.None},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, heard := impostor(t, ca, c.answer)
			cfg := (&rig{address: address, ca: ca}).config()
			cfg.HandshakeTimeout = 10 * time.Second
			if name == "nothing" {
				cfg.HandshakeTimeout = 50 * time.Millisecond
			}
			seen := watchStates(&cfg)
			stop := launch(t, cfg, offeredDisk())
			state := seen.await(t, func(s State) bool {
				return s.Err != nil && !errors.Is(s.Err, context.DeadlineExceeded) || name == "nothing"
			})
			if state.Connected || errclass.Of(state.Err) != c.class && name != "nothing" {
				t.Errorf("%+v, of class %v", state, errclass.Of(state.Err))
			}
			if rest := <-heard; len(rest) > 0 {
				t.Errorf("it heard %d bytes more than a hello", len(rest))
			}
			stop()
		})
	}
}

// Connections that prove nothing cost a bounded number of places, bytes and seconds, and lock no launcher out.
func TestUnproven_isBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *Server) { s.Limits.Handshakes, s.Limits.HandshakeTimeout = 3, testTimeout })
	silent := make([]net.Conn, 0, 50)
	for range cap(silent) {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	waitUntil(t, "displaced connections", func() bool { return r.server.Counters().Displaced == 47 })
	r.server.mu.Lock()
	if n := len(r.server.unproven); n > 3 {
		t.Errorf("%d unproven connections", n)
	}
	r.server.mu.Unlock()
	launch(t, r.config(), offeredDisk())
	if _, _, err := readAll(testContext(t), r.open(t, "disk"), extent.Extent{Length: 1 << 20}, export.Everything); err != nil {
		t.Error(err)
	}

	// A stranger that sends and sends.
	loud, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer loud.Close()
	record := append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, make([]byte, 1<<14-4)...) // a ClientHello without an end
	sent := 0
	for err == nil {
		var n int
		n, err = loud.Write(record)
		sent += n
	}
	if sent > 64<<20 {
		t.Errorf("%d bytes were taken", sent)
	}
}

func TestUnproven_endsInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *Server) { s.Limits.HandshakeTimeout = 10 * time.Millisecond })
	plain, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.SetDeadline(time.Now().Add(testTimeout))
	if _, err := io.ReadAll(plain); errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	waitUntil(t, "the count", func() bool { return r.server.Counters().FailedHandshakes == 1 })
}

// A socket takes so many bytes and no more before its peer has proven itself.
func TestUnproven_bytes(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		there.Write(make([]byte, maxUnprovenBytes+1))
	}()
	n, err := io.Copy(io.Discard, struct{ io.Reader }{newSocket(here)})
	if n != maxUnprovenBytes || !errors.Is(err, ErrProtocol) {
		t.Errorf("%d bytes: %v", n, err)
	}
}

// Which session wins: see Server.claimPlace.
func TestSession_whichOneWins(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	connect := func(id byte, session uint64) (*tls.Conn, refusal) {
		c := r.dialRaw(t)
		return c, answerTo(t, c, proven(t, c, goodHello(id, session))).refusal
	}
	first, refused := connect(1, 5)
	if refused != accepted {
		t.Fatal(refused)
	}
	for name, c := range map[string]struct {
		id      byte
		session uint64
	}{"another launcher": {2, 9}, "the same session": {1, 5}, "an older session": {1, 4}} {
		if _, refused := connect(c.id, c.session); refused != refusedConflict {
			t.Errorf("%s: %v", name, refused)
		}
	}
	newer, refused := connect(1, 6)
	if refused != accepted {
		t.Fatal(refused)
	}
	expectEnd(t, first)
	if _, refused := connect(2, 9); refused != refusedConflict {
		t.Errorf("another launcher beside the newer session: %v", refused)
	}
	newer.Close()
	waitUntil(t, "the end of the newer session", func() bool { return r.server.Counters().Lost == 2 })
	if _, refused := connect(1, 6); refused != refusedConflict {
		t.Errorf("a session that has ended: %v", refused)
	}
	if _, refused := connect(2, 1); refused != accepted {
		t.Errorf("another launcher when nobody is connected: %v", refused)
	}
	// The server answers first and counts then.
	waitUntil(t, "the counts", func() bool { c := r.server.Counters(); return c.Sessions == 3 && c.RefusedConflicts == 5 })
	if c := r.server.Counters(); c.Replaced != 1 {
		t.Errorf("%+v", c)
	}
}

// Certificates and tokens are asked for anew for each connection, on both sides.
func TestHandshake_followsRotation(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ca, token := newAuthority(t), rightToken()
	r := newRig(t, func(s *Server) {
		s.TLS = &tls.Config{GetCertificate: func(i *tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			return ca.serverConfig(t, testName).GetCertificate(i)
		}}
		s.Token = func() ([]byte, error) { mu.Lock(); defer mu.Unlock(); return token, nil }
	})
	cfg := r.config()
	cfg.CA = func() (*x509.CertPool, error) { mu.Lock(); defer mu.Unlock(); return ca.pool() }
	cfg.Token = func() ([]byte, error) { mu.Lock(); defer mu.Unlock(); return token, nil }
	seen := watchStates(&cfg)
	launch(t, cfg, offeredDisk())
	seen.await(t, func(s State) bool { return s.Sessions == 1 })
	mu.Lock()
	ca, token = newAuthority(t), Token([]byte("another key"), testUID)
	mu.Unlock()
	waitUntil(t, "the session", r.server.Connected)
	r.server.mu.Lock()
	r.server.current.cancel(io.ErrClosedPipe)
	r.server.mu.Unlock()
	if s := seen.await(t, func(s State) bool { return s.Sessions == 2 }); !s.Connected || s.Err != nil {
		t.Errorf("%+v", s)
	}
}
