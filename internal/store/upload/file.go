package upload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

// File is the file that a command uploads. It is an http.Handler.
type File struct {
	file *os.File
	// Bytes is the size of the file.
	Bytes    int64
	identity string

	position atomic.Int64
	mu       sync.Mutex
	begin    Begin
	err      error
	failed   chan struct{} // closed when err is set
}

// Begin is how an upload began.
type Begin struct {
	// Asked is true when the pod has asked for something.
	Asked bool
	// Continues is true if the pod has a part of this file already, and At is how many bytes it has, if that is known.
	Continues bool
	At        int64
	// Replaces is true if the pod had a part of another file, or of this one before it changed.
	Replaces bool
}

// OpenFile opens the file to upload.
func OpenFile(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the image: %w", err)
	}
	u := &File{file: f, failed: make(chan struct{})}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("look at the image: %w", err)
	case !info.Mode().IsRegular():
		err = errclass.Errorf(errclass.Invalid, "%s is not a regular file: give a file that holds the image", path)
	case info.Size() == 0:
		err = errclass.Errorf(errclass.Invalid, "%s is empty: give a file that holds the image", path)
	default:
		u.Bytes, u.identity = info.Size(), identify(info)
		return u, nil
	}
	return nil, errors.Join(err, f.Close())
}

// identify returns an identity that changes when somebody writes to the file, and when another file takes its name.
func identify(info os.FileInfo) string {
	text := fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(" %d %d", s.Dev, s.Ino)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Identity is what the pod calls the file. Each file has its own, and a write to the file changes it.
func (f *File) Identity() string { return f.identity }

var identities = regexp.MustCompile(`^"[0-9a-f]{32}"$`)

// ParseTag returns the identity of the file that has an ETag, or "" if no command gave it.
func ParseTag(tag string) string {
	if !identities.MatchString(tag) {
		return ""
	}
	return strings.Trim(tag, `"`)
}

// Close implements io.Closer.
func (f *File) Close() error { return f.file.Close() }

// Position returns how many bytes the pod has been sent, with those that it had already.
func (f *File) Position() int64 { return min(f.position.Load(), f.Bytes) }

// HowItBegan says how the upload began.
func (f *File) HowItBegan() Begin {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begin
}

// Err returns why the file cannot be read, or nil.
func (f *File) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// recordFailure keeps the first error, which ends the command, and returns err.
func (f *File) recordFailure(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		close(f.failed)
	}
	return err
}

// checkUnchanged fails if the file has changed since it was opened.
func (f *File) checkUnchanged() error {
	info, err := f.file.Stat()
	if err != nil {
		return f.recordFailure(fmt.Errorf("look at the image: %w", err))
	}
	if identify(info) != f.identity {
		return f.recordFailure(errclass.Errorf(errclass.Conflict,
			"%s was changed while it was uploaded: stop what writes to it, and run the command again", f.file.Name()))
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (f *File) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f.checkUnchanged(); err != nil {
		http.Error(w, "the file cannot be read", http.StatusServiceUnavailable)
		return
	}
	tag := `"` + f.identity + `"`
	f.noteRequest(r, tag)
	w.Header().Set("ETag", tag)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, &content{io.NewSectionReader(f.file, 0, f.Bytes), f})
}

// noteRequest finds out what the pod has already.
func (f *File) noteRequest(r *http.Request, tag string) {
	var first int64
	asked := r.Header.Get("Range")
	_, _ = fmt.Sscanf(asked, "bytes=%d-", &first) // 0 if there is no range
	had := r.Header.Get("If-Range")
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case had != "" && had != tag:
		first, asked = 0, "-"
		f.begin.Replaces = true
	case had == tag && !f.begin.Asked:
		f.begin.Continues, f.begin.At = true, first
	}
	f.begin.Asked = true
	if strings.HasSuffix(asked, "-") { // From there to the end: it is read in one go.
		f.position.Store(first)
	}
}

// content is the file in one request.
type content struct {
	*io.SectionReader

	file *File
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.SectionReader.Read(p)
	if err != nil && err != io.EOF {
		return 0, c.file.recordFailure(fmt.Errorf("read the image: %w", err))
	}
	if changed := c.file.checkUnchanged(); changed != nil { // The bytes may be from before or after the change.
		return 0, changed
	}
	c.file.position.Add(int64(n))
	return n, err
}

// Serve answers the requests on a connection that the pod has taken, until the connection or ctx ends.
func Serve(ctx context.Context, conn net.Conn, h http.Handler) {
	l := &oneConnection{conn: conn, ended: make(chan struct{})}
	//nolint:gosec // No timeouts: the pod asks when it wants to.
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	_ = server.Serve(l) // It ends with the connection.
	_ = server.Close()
	_ = conn.Close()
}

// oneConnection is a listener that accepts one connection, and ends with it.
type oneConnection struct {
	conn  net.Conn
	once  sync.Once
	given atomic.Bool
	ended chan struct{}
}

// Accept implements net.Listener.
func (l *oneConnection) Accept() (net.Conn, error) {
	if !l.given.Swap(true) {
		return &servedConnection{l.conn, l}, nil
	}
	<-l.ended
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *oneConnection) Close() error {
	l.once.Do(func() { close(l.ended) })
	return nil
}

// Addr implements net.Listener.
func (l *oneConnection) Addr() net.Addr { return l.conn.LocalAddr() }

// servedConnection ends its listener.
type servedConnection struct {
	net.Conn

	listener *oneConnection
}

// Close implements net.Conn.
func (c *servedConnection) Close() error {
	_ = c.listener.Close() // It returns nil.
	return c.Conn.Close()
}
