package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
)

// The ways to read a volume.
const (
	readData    = "data"
	readRegions = "regions"
	readStream  = "stream"
)

// clientTask is what a client reads. It drops the bytes.
type clientTask struct {
	Read, Volume string
	Connections  int64
	// Bytes is how much there is to read, of a disk of DiskBytes.
	Bytes, DiskBytes int64
	// Compare is the disk's image if every byte shall be compared with it.
	Compare string
}

// client reads over HTTP/1.1, as Go's client does with a configuration of TLS.
type client struct {
	role
	http  *http.Client
	image *os.File
}

func runClient(ctx context.Context, r role) (err error) {
	certificate, err := os.ReadFile(r.path(certificateFile))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	transport := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12},
		DisableCompression: true, MaxIdleConnsPerHost: int(r.Client.Connections), ReadBufferSize: 64 << 10,
	}
	c := &client{role: r, http: &http.Client{Transport: transport}}
	if r.Client.Compare != "" {
		if c.image, err = os.Open(r.Client.Compare); err != nil {
			return err
		}
		defer c.image.Close() //nolint:errcheck // it is only read
	}
	var read int64
	switch r.Client.Read {
	case readData:
		read, err = c.readDisk(ctx)
	case readRegions:
		read, err = c.readRegions(ctx)
	case readStream:
		read, err = c.readStream(ctx)
	default:
		err = fmt.Errorf("nobody can read %q", r.Client.Read)
	}
	if err == nil && read != r.Client.Bytes {
		err = fmt.Errorf("the client read %d bytes, not %d", read, r.Client.Bytes)
	}
	return err
}

// get asks for a path below the volume's.
func (c *client) get(ctx context.Context, path string, part extent.Extent) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.HTTPS+"/exports/"+c.Client.Volume+"/"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set(server.TokenHeader, token)
	if !part.Empty() {
		request.Header.Set("Range", byteRange(part))
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPartialContent {
		return nil, errors.Join(fmt.Errorf("%s: %s", path, answer.Status), answer.Body.Close())
	}
	return answer, nil
}

func byteRange(e extent.Extent) string { return fmt.Sprintf("bytes=%d-%d", e.Offset, e.End()-1) }

// parts divides a disk evenly.
func parts(diskBytes, count int64) []extent.Extent {
	var all []extent.Extent
	for i := range count {
		from := diskBytes * i / count
		all = append(all, extent.Extent{Offset: from, Length: diskBytes*(i+1)/count - from})
	}
	return all
}

// readDisk reads the whole disk, over each connection an equal part.
func (c *client) readDisk(ctx context.Context) (int64, error) {
	readers, ctx := errgroup.WithContext(ctx)
	for _, part := range parts(c.Client.DiskBytes, c.Client.Connections) {
		readers.Go(func() error { return c.readPart(ctx, part, make([]byte, 256<<10)) })
	}
	return c.Client.DiskBytes, readers.Wait()
}

// readPart reads an extent with one request.
func (c *client) readPart(ctx context.Context, part extent.Extent, buffer []byte) error {
	answer, err := c.get(ctx, "data", part)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	at := part.Offset
	for {
		n, err := answer.Body.Read(buffer)
		if failed := c.compare(at, buffer[:n]); failed != nil {
			return failed
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF) && at == part.End():
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%v ended at %d", part, at)
		case err != nil:
			return err
		}
	}
}

// compare compares what was read at an offset with the image.
func (c *client) compare(offset int64, got []byte) error {
	if c.image == nil || len(got) == 0 {
		return nil
	}
	want := make([]byte, len(got))
	if _, err := c.image.ReadAt(want, offset); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes at %d are not those of the disk", len(got), offset)
	}
	return nil
}

// readRegions reads the map, and then each changed region with a request of its own.
func (c *client) readRegions(ctx context.Context) (sum int64, err error) {
	regions, err := c.readMap(ctx)
	if err != nil {
		return 0, err
	}
	buffer := make([]byte, 256<<10)
	for _, e := range regions {
		if err := c.readPart(ctx, e, buffer); err != nil {
			return 0, err
		}
		sum += e.Length
	}
	return sum, nil
}

func (c *client) readMap(ctx context.Context) (regions []extent.Extent, err error) {
	for next := new(int64); next != nil; {
		answer, err := c.get(ctx, fmt.Sprintf("map?start=%d", *next), extent.Extent{})
		if err != nil {
			return nil, err
		}
		var page struct {
			Regions []struct {
				Offset, Length int64
				Type           string
			}
			Next *int64 `json:"next_offset"`
		}
		if err := errors.Join(json.NewDecoder(answer.Body).Decode(&page), answer.Body.Close()); err != nil {
			return nil, err
		}
		for _, r := range page.Regions {
			if r.Type == "dirty" {
				regions = append(regions, extent.Extent{Offset: r.Offset, Length: r.Length})
			}
		}
		next = page.Next
	}
	return regions, nil
}

// readStream reads and verifies the stream. Zeroes count as bytes that were read.
func (c *client) readStream(ctx context.Context) (sum int64, err error) {
	answer, err := c.get(ctx, "stream", extent.Extent{})
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	d, err := stream.NewDecoder(answer.Body)
	if err != nil {
		return 0, err
	}
	for {
		f, err := d.Next()
		switch {
		case errors.Is(err, io.EOF):
			return sum, nil
		case err != nil:
			return 0, err
		}
		if err := c.compareChunk(f.Chunk); err != nil {
			return 0, err
		}
		sum += f.Length
	}
}

func (c *client) compareChunk(chunk export.Chunk) error {
	if chunk.Data != nil || c.image == nil {
		return c.compare(chunk.Offset, chunk.Data)
	}
	return c.compare(chunk.Offset, make([]byte, chunk.Length))
}
