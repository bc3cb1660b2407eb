package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
)

// proofBytes is the length of a proof.
const proofBytes = sha256.Size

// Token returns the token of a backup: HMAC-SHA256 of its UID with the key of the installation. Without a key there is no
// token, and without a token no proof.
func Token(key []byte, backupUID string) []byte {
	if len(key) == 0 || backupUID == "" {
		return nil
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(backupUID))
	return mac.Sum(nil)
}

// role is who proves something: the proof of one side is no proof of the other.
type role byte

const (
	roleLauncher role = 'L'
	roleReader   role = 'R'
)

// channelBinding returns what tells this TLS connection from every other one, also from those of the same two peers: the
// channel binding tls-exporter, RFC 9266. Neither side can choose it.
func channelBinding(c *tls.Conn) ([]byte, error) {
	state := c.ConnectionState()
	if state.Version < tls.VersionTLS13 || state.NegotiatedProtocol != protocolName {
		return nil, protocolError("TLS %#x with protocol %q", state.Version, state.NegotiatedProtocol)
	}
	binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		return nil, fmt.Errorf("channel binding: %w", err)
	}
	return binding, nil
}

// makeProof returns the proof that a side holds the token. said is all that was said on the connection up to the proof: it
// has the backup's UID and the versions.
func makeProof(token []byte, by role, binding []byte, said ...[]byte) []byte {
	mac := hmac.New(sha256.New, token)
	mac.Write([]byte("varve tunnel proof\x00"))
	mac.Write([]byte{byte(by)})
	for _, part := range append([][]byte{binding}, said...) {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// isProof compares in constant time. Nothing is a proof for an empty token.
func isProof(proof, token []byte, by role, binding []byte, said ...[]byte) bool {
	return len(token) > 0 && hmac.Equal(proof, makeProof(token, by, binding, said...))
}
