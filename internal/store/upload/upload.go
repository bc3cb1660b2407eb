// Package upload carries an image from the command that uploads it to the source pod that writes it.
//
// The pod listens only on the loopback interface of its network, which nothing but the API server's port forwarding
// reaches. The command keeps a few connections open. Each begins with a line of the command, which names its session,
// and a line of the pod, which takes or refuses it. From then on the pod is an HTTP client, and the command serves its
// file: the pod asks for what it needs, and asks again where a connection broke.
//
// The pod serves one session at a time, as long as that has a connection: it must not mix parts of two files. A command
// that has lost its connections comes back with the same session.
package upload

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"regexp"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// Port is where the source pod listens.
	Port = 9475
	// Connections is how many a command keeps open.
	Connections = 4

	// greetingTimeout is how long the first lines of a connection may take.
	greetingTimeout = 30 * time.Second
	greeting        = "varve-upload 1 "
	taken           = "taken"
	refused         = "busy"
	sessionBytes    = 16
	// lineBytes bounds the first lines.
	lineBytes = 64
)

// ErrBusy means that the pod serves another session.
var ErrBusy = errclass.New(errclass.Conflict, "another command is uploading this image")

// Session names one run of a command.
type Session string

var sessions = regexp.MustCompile(`^[0-9a-f]{32}$`)

// NewSession returns a session that nobody else has.
func NewSession() Session {
	id := make([]byte, sessionBytes)
	_, _ = rand.Read(id) // It never fails.
	return Session(hex.EncodeToString(id))
}

// Greet tells the pod at the other end of a new connection which session it belongs to. Errors are ErrBusy or Transient.
// Greet closes a connection that cannot be used.
func (s Session) Greet(ctx context.Context, conn net.Conn) (err error) {
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	answer, err := exchangeLines(conn, greeting+string(s))
	switch {
	case !stop():
		return context.Cause(ctx)
	case err != nil:
		return errclass.Errorf(errclass.Transient, "the pod that makes the image does not take the upload: %w", err)
	case answer == refused:
		return ErrBusy
	case answer != taken:
		return errclass.Errorf(errclass.Transient, "the pod that makes the image gave the answer %q", answer)
	}
	return nil
}

// exchangeLines sends a line, and returns the one that comes back.
func exchangeLines(conn net.Conn, line string) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(greetingTimeout)); err != nil { //nolint:forbidigo // a deadline of the system
		return "", err
	}
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := readLine(conn)
	if err != nil {
		return "", err
	}
	return answer, conn.SetDeadline(time.Time{})
}

// readLine reads a line, and nothing that comes after it: a byte at a time.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for next := make([]byte, 1); len(line) < lineBytes; {
		if _, err := io.ReadFull(r, next); err != nil {
			return "", fmt.Errorf("read the first line: %w", err)
		}
		if next[0] == '\n' {
			return string(line), nil
		}
		line = append(line, next[0])
	}
	return "", errclass.Errorf(errclass.Invalid, "the first line has more than %d bytes", lineBytes)
}
