package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// handshakeTimeout bounds everything up to the stream's byte.
	handshakeTimeout = 10 * time.Second
	// protocolName is the ALPN name.
	protocolName = "varve-migration"
	// minTokenBytes is the shortest token that counts as one.
	minTokenBytes = 16
	// proofBytes is the length of a proof.
	proofBytes = sha256.Size
)

// ErrProof says that the other side does not hold the migration's token.
var ErrProof = errclass.New(errclass.Invalid, "the other launcher has not proven that it belongs to this migration")

// Stream says what a connection carries.
type Stream byte

const (
	// Libvirt goes to the target's libvirtd.
	Libvirt Stream = 'L'
	// QEMU goes to the target's QEMU: the guest's memory and devices.
	QEMU Stream = 'Q'
	// Handover goes to the target's launcher: the source's guest is gone, and the target's may run.
	Handover Stream = 'H'
)

// Identity is what both sides know of a migration.
type Identity struct {
	// UID is the migration's UID.
	UID string
	// Token is the secret that both launchers have from their handlers.
	Token []byte
}

// Check says whether there can be a proof.
func (i Identity) Check() error {
	if i.UID == "" || len(i.Token) < minTokenBytes {
		return fmt.Errorf("%w: the migration has no UID, or a token of fewer than %d bytes", errclass.Invalid, minTokenBytes)
	}
	return nil
}

// role is who proves something.
type role byte

const (
	roleSource role = 'S'
	roleTarget role = 'T'
)

func (i Identity) makeProof(by role, binding []byte) []byte {
	mac := hmac.New(sha256.New, i.Token)
	mac.Write([]byte("varve migration proof\x00"))
	mac.Write([]byte{byte(by)})
	for _, part := range [][]byte{binding, []byte(i.UID)} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// channelBinding returns what tells this TLS connection from every other one: tls-exporter, RFC 9266.
func channelBinding(c *tls.Conn) ([]byte, error) {
	state := c.ConnectionState()
	if state.Version < tls.VersionTLS13 || state.NegotiatedProtocol != protocolName {
		return nil, fmt.Errorf("%w: TLS %#x with protocol %q", errclass.Invalid, state.Version, state.NegotiatedProtocol)
	}
	binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		return nil, fmt.Errorf("channel binding: %w", err)
	}
	return binding, nil
}

// shakeHands runs one side's part of the handshake within the time for it. It closes the connection if that fails.
func shakeHands(ctx context.Context, c *tls.Conn, part func(binding []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.NetConn().Close() }) // whoever waits for it fails
	err := c.HandshakeContext(ctx)
	var binding []byte
	if err == nil {
		binding, err = channelBinding(c)
	}
	if err == nil {
		err = part(binding)
	}
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		_ = c.NetConn().Close() // the handshake's error says more
	}
	return err
}

// greetTarget is the source's part.
func (i Identity) greetTarget(c *tls.Conn, stream Stream) func(binding []byte) error {
	return func(binding []byte) error {
		if _, err := c.Write(i.makeProof(roleSource, binding)); err != nil {
			return fmt.Errorf("send the proof: %w", err)
		}
		said := make([]byte, proofBytes)
		if _, err := io.ReadFull(c, said); err != nil {
			return fmt.Errorf("the target's launcher has not accepted the proof of this side: %w", err)
		}
		if !hmac.Equal(said, i.makeProof(roleTarget, binding)) {
			return ErrProof
		}
		if _, err := c.Write([]byte{byte(stream)}); err != nil {
			return fmt.Errorf("send the stream's name: %w", err)
		}
		return nil
	}
}

// admitSource is the target's part. It sets the stream.
func (i Identity) admitSource(c *tls.Conn, stream *Stream) func(binding []byte) error {
	return func(binding []byte) error {
		said := make([]byte, proofBytes)
		if _, err := io.ReadFull(c, said); err != nil {
			return fmt.Errorf("read the proof: %w", err)
		}
		if !hmac.Equal(said, i.makeProof(roleSource, binding)) {
			return ErrProof
		}
		if _, err := c.Write(i.makeProof(roleTarget, binding)); err != nil {
			return fmt.Errorf("send the proof: %w", err)
		}
		name := make([]byte, 1)
		if _, err := io.ReadFull(c, name); err != nil {
			return fmt.Errorf("read the stream's name: %w", err)
		}
		*stream = Stream(name[0])
		return nil
	}
}

// dialTarget opens one stream to the target.
func (i Identity) dialTarget(ctx context.Context, address string, stream Stream) (*tls.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the target's launcher: %w", err)
	}
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName},
		InsecureSkipVerify: true, //nolint:gosec // the proofs say who is there, not the certificate
	})
	if err := shakeHands(ctx, c, i.greetTarget(c, stream)); err != nil {
		return nil, fmt.Errorf("connect to the target's launcher at %s: %w", address, err)
	}
	return c, nil
}

// serverConfig returns TLS settings with a certificate that nobody checks.
func serverConfig() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName}, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}, nil
}
