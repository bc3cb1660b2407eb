package tunnel

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// protocolName is the application protocol in the TLS handshake (ALPN).
	protocolName = "varve-tunnel"
	// magic begins hello and welcome, in every version.
	magic = "varvetun"
	// lowestVersion and highestVersion are what this side speaks.
	lowestVersion, highestVersion = 1, 1

	launcherIDBytes = 16
	helloFixedBytes = len(magic) + 4 + launcherIDBytes + 8 + 1
	maxUIDBytes     = 64
	welcomeBytes    = len(magic) + 8
)

// refusal is why the far end lets a launcher not in.
type refusal uint8

const (
	accepted refusal = iota
	// refusedVersion: no version is spoken by both.
	refusedVersion
	// refusedProof: wrong or empty token, other backup, other connection.
	refusedProof
	// refusedConflict: another launcher is connected, or a newer session of this one is or was.
	refusedConflict
)

// hello is the first that the launcher says. Its layout is the same in every version.
type hello struct {
	lowest, highest uint16
	// launcher identifies the run of the launcher, and session counts its connections.
	launcher [launcherIDBytes]byte
	session  uint64
	uid      string
}

func (h hello) encode() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint16(b, h.lowest)
	b = binary.BigEndian.AppendUint16(b, h.highest)
	b = append(b, h.launcher[:]...)
	b = binary.BigEndian.AppendUint64(b, h.session)
	b = append(b, byte(len(h.uid)))
	return append(b, h.uid...)
}

// parseHello reads the fixed part of a hello, and returns how long the UID after it is.
func parseHello(b []byte) (h hello, uidBytes int, err error) {
	if string(b[:len(magic)]) != magic {
		return h, 0, protocolError("no hello")
	}
	b = b[len(magic):]
	h.lowest, h.highest = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	copy(h.launcher[:], b[4:])
	h.session = binary.BigEndian.Uint64(b[4+launcherIDBytes:])
	uidBytes = int(b[4+launcherIDBytes+8])
	if h.lowest == 0 || h.lowest > h.highest || uidBytes == 0 || uidBytes > maxUIDBytes {
		return h, 0, protocolError("hello with versions %d to %d and a UID of %d bytes", h.lowest, h.highest, uidBytes)
	}
	return h, uidBytes, nil
}

// readHello reads a hello. said is what was read.
func readHello(from io.Reader) (h hello, said []byte, err error) {
	said = make([]byte, helloFixedBytes, helloFixedBytes+maxUIDBytes)
	if _, err := io.ReadFull(from, said); err != nil {
		return h, nil, err
	}
	h, n, err := parseHello(said)
	if err != nil {
		return h, nil, err
	}
	said = said[:helloFixedBytes+n]
	if _, err := io.ReadFull(from, said[helloFixedBytes:]); err != nil {
		return h, nil, err
	}
	h.uid = string(said[helloFixedBytes:])
	return h, said, nil
}

// welcome is the far end's answer. Its layout is the same in every version.
type welcome struct {
	// version is the one that is spoken from here on; 0 with a refusal.
	version uint16
	refusal refusal
	// lowest and highest are the versions of the far end.
	lowest, highest uint16
}

func (w welcome) encode() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint16(b, w.version)
	b = append(b, byte(w.refusal), 0)
	b = binary.BigEndian.AppendUint16(b, w.lowest)
	return binary.BigEndian.AppendUint16(b, w.highest)
}

func parseWelcome(b []byte) (welcome, error) {
	if string(b[:len(magic)]) != magic || b[len(magic)+3] != 0 {
		return welcome{}, protocolError("no welcome")
	}
	b = b[len(magic):]
	w := welcome{version: binary.BigEndian.Uint16(b), refusal: refusal(b[2]), lowest: binary.BigEndian.Uint16(b[4:]), highest: binary.BigEndian.Uint16(b[6:])}
	if (w.version == 0) != (w.refusal != accepted) {
		return w, protocolError("welcome with version %d and refusal %d", w.version, w.refusal)
	}
	return w, nil
}

// commonVersion returns the highest version that both sides speak, or 0.
func commonVersion(h hello) uint16 {
	if v := min(h.highest, highestVersion); v >= max(h.lowest, lowestVersion) {
		return v
	}
	return 0
}

// introduceLauncher is the launcher's side of the handshake, inside TLS: it proves that it holds the token, and returns once
// the far end has proven the same.
func introduceLauncher(c *tls.Conn, out io.Writer, h hello, token []byte) error {
	if len(token) == 0 {
		return errclass.Errorf(errclass.Denied, "the token of backup %s is empty", h.uid)
	}
	binding, err := channelBinding(c)
	if err != nil {
		return err
	}
	asked := h.encode()
	if _, err := out.Write(append(asked[:len(asked):len(asked)], makeProof(token, roleLauncher, binding, asked)...)); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	answer := make([]byte, welcomeBytes+proofBytes)
	if _, err := io.ReadFull(c, answer); err != nil {
		return fmt.Errorf("read welcome: %w", err)
	}
	w, err := parseWelcome(answer[:welcomeBytes])
	if err != nil {
		return err
	}
	if w.refusal != accepted {
		return refusalError(w, h.uid)
	}
	if !isProof(answer[welcomeBytes:], token, roleReader, binding, asked, answer[:welcomeBytes]) {
		return errclass.Errorf(errclass.Denied, "the far end does not hold the token of backup %s", h.uid)
	}
	if w.version < h.lowest || w.version > h.highest {
		return protocolError("version %d was not offered", w.version)
	}
	return nil
}

// refusalError says what a refusal means. Nobody has proven that it is the far end's.
func refusalError(w welcome, uid string) error {
	switch w.refusal {
	case refusedVersion:
		return errclass.Errorf(errclass.Invalid, "the far end speaks versions %d to %d of the tunnel's protocol, and this launcher %d to %d", w.lowest, w.highest, lowestVersion, highestVersion)
	case refusedProof:
		return errclass.Errorf(errclass.Denied, "the far end refuses the token of backup %s", uid)
	case refusedConflict:
		return errclass.Errorf(errclass.Conflict, "another launcher is connected for backup %s", uid)
	default:
		return protocolError("refusal %d", w.refusal)
	}
}

// admission is what the far end decides with.
type admission struct {
	uid   string
	token []byte
	// claim decides, once the proof is right, whether the launcher may come in.
	claim func(hello) refusal
}

// refusedError is the end of a connection that was not let in.
type refusedError struct {
	why  refusal
	text string
}

func (e *refusedError) Error() string { return e.text }

// admitLauncher is the far end's side of the handshake, inside TLS. It proves that it holds the token only to who has
// proven it.
func admitLauncher(c *tls.Conn, out io.Writer, a admission) (hello, error) {
	binding, err := channelBinding(c)
	if err != nil {
		return hello{}, err
	}
	h, asked, err := readHello(c)
	if err != nil {
		return h, fmt.Errorf("read hello: %w", err)
	}
	proof := make([]byte, proofBytes)
	if _, err := io.ReadFull(c, proof); err != nil {
		return h, fmt.Errorf("read proof: %w", err)
	}
	w := welcome{version: commonVersion(h), lowest: lowestVersion, highest: highestVersion}
	var text string
	switch {
	case w.version == 0:
		w.refusal, text = refusedVersion, fmt.Sprintf("it speaks versions %d to %d", h.lowest, h.highest)
	case len(a.token) == 0:
		w.refusal, text = refusedProof, "there is no token to compare with"
	case h.uid != a.uid:
		w.refusal, text = refusedProof, fmt.Sprintf("it asks for backup %q", cleanMessage(h.uid))
	case !isProof(proof, a.token, roleLauncher, binding, asked):
		w.refusal, text = refusedProof, "its proof is wrong"
	default:
		w.refusal = a.claim(h)
		text = "another launcher is connected, or a newer session of this one"
	}
	if w.refusal != accepted {
		w.version = 0
		_, err := out.Write(append(w.encode(), make([]byte, proofBytes)...))
		return h, errors.Join(&refusedError{w.refusal, text}, err)
	}
	answer := w.encode()
	if _, err := out.Write(append(answer[:len(answer):len(answer)], makeProof(a.token, roleReader, binding, asked, answer)...)); err != nil {
		return h, fmt.Errorf("send welcome: %w", err)
	}
	return h, nil
}
