package exporter

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
)

// The endpoints of a disk, as they stand in metrics.
const (
	rawEndpoint  = "raw"
	gzipEndpoint = "gzip"
)

// serveDisks adds the disks of a configuration to a server. run is in their tags. It calls sent as server.Hooks.Sent is
// called.
func serveDisks(s *server.Server, config podspec.Config, run string, sent func(volume, endpoint string, bytes int64)) {
	for _, volume := range config.Volumes {
		d := &diskHandler{volume: volume, tag: fmt.Sprintf("%q", run+"/"+volume.Name), sent: sent}
		s.HandleVolume(podspec.RawPath(volume.Name), volume.Name, rawEndpoint, exactly(podspec.RawPath(volume.Name), d.serveRaw))
		s.HandleVolume(podspec.GzipPath(volume.Name), volume.Name, gzipEndpoint, exactly(podspec.GzipPath(volume.Name), d.serveGzip))
	}
}

// exactly answers GET and HEAD requests for one path, and no longer one.
func exactly(path string, handle http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.EscapedPath() != path:
			http.Error(w, "no such path", http.StatusNotFound)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the method is GET or HEAD", http.StatusMethodNotAllowed)
		default:
			handle(w, r)
		}
	})
}

// checkDisks returns why a disk cannot be served.
func checkDisks(volumes []podspec.Volume) error {
	for _, v := range volumes {
		f, err := openDisk(v)
		if err != nil {
			return err
		}
		_ = f.Close() // only read
	}
	return nil
}

// openDisk opens a file or a block device. Whoever writes to the claim may have put anything else in its place: a link to
// a file of this pod, or a pipe that nobody writes to.
func openDisk(v podspec.Volume) (*os.File, error) {
	f, err := os.OpenFile(v.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", v.Name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice {
		err = errclass.Errorf(errclass.Invalid, "it is neither a file nor a block device")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open disk %s: %w", v.Name, err), f.Close())
	}
	return f, nil
}

// diskHandler serves one disk. Nobody writes to it while the pod exists, so it always has the same tag.
type diskHandler struct {
	volume podspec.Volume
	tag    string
	sent   func(volume, endpoint string, bytes int64)
}

// countedDisk counts the content of a disk on its way to a client.
type countedDisk struct {
	file *os.File
	sent func(bytes int64)
}

func (d *diskHandler) count(f *os.File, endpoint string) *countedDisk {
	return &countedDisk{file: f, sent: func(bytes int64) { d.sent(d.volume.Name, endpoint, bytes) }}
}

// Read implements io.Reader.
func (c *countedDisk) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.sent(int64(n))
	return n, err
}

// Seek implements io.Seeker.
func (c *countedDisk) Seek(offset int64, whence int) (int64, error) {
	return c.file.Seek(offset, whence)
}

func (d *diskHandler) open(w http.ResponseWriter) *os.File {
	f, err := openDisk(d.volume)
	if err != nil {
		http.Error(w, "the disk cannot be opened", http.StatusServiceUnavailable)
		return nil
	}
	return f
}

func (d *diskHandler) serveRaw(w http.ResponseWriter, r *http.Request) {
	f := d.open(w)
	if f == nil {
		return
	}
	defer f.Close() //nolint:errcheck // only read
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", d.tag)
	http.ServeContent(w, r, "", time.Time{}, d.count(f, rawEndpoint))
}

// serveGzip compresses the disk while it is sent. It has no length and no ranges.
func (d *diskHandler) serveGzip(w http.ResponseWriter, r *http.Request) {
	f := d.open(w)
	if f == nil {
		return
	}
	defer f.Close() //nolint:errcheck // only read
	w.Header().Set("Content-Type", "application/gzip")
	if r.Method == http.MethodHead {
		return
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, d.count(f, gzipEndpoint))
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}
