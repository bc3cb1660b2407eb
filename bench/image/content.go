package main

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

const (
	// seed is the seed of the image.
	seed = 1
	// blockBytes is the unit of the runs of data and holes, and maxRunBlocks how many the longest has: 8 MiB.
	blockBytes   = 64 * kib
	maxRunBlocks = 128
)

// content is the image's files, and the server that offers them.
type content struct {
	raw, qcow2 string
	bytes      int64
	checksum   string // the SHA-512 of the raw image

	address string
	server  *http.Server
	ended   chan error
}

// makeContent writes the image, and begins to serve it.
func (b *bench) makeContent(ctx context.Context) (*content, error) {
	c := &content{
		raw: filepath.Join(b.work, "image.raw"), qcow2: filepath.Join(b.work, "image.qcow2"), bytes: b.imageBytes(),
	}
	if err := c.writeRaw(ctx); err != nil {
		return nil, err
	}
	if _, err := runTool(ctx, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", c.raw, c.qcow2); err != nil {
		return nil, err
	}
	h := sha512.New()
	if err := readFile(c.raw, h); err != nil {
		return nil, err
	}
	c.checksum = hex.EncodeToString(h.Sum(nil))
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.address = "http://" + listener.Addr().String() + "/"
	c.server = &http.Server{Handler: http.FileServer(http.Dir(b.work)), ReadHeaderTimeout: time.Minute}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.server.Serve(listener) }()
	return c, nil
}

func (c *content) close() error {
	err := c.server.Close()
	if served := <-c.ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// url returns the address of one of the image's files.
func (c *content) url(file string) string { return c.address + filepath.Base(file) }

// dataRuns returns where an image has data: half of its blocks, in runs with holes in between.
func dataRuns(bytes int64) []extent.Extent {
	random := rand.New(rand.NewPCG(seed, 0))
	var runs []extent.Extent
	for at := int64(0); at < bytes; {
		n := min((1+random.Int64N(maxRunBlocks))*blockBytes, (bytes-at)/2)
		if n < blockBytes {
			n = bytes - at
		}
		runs = append(runs, extent.Extent{Offset: at, Length: n})
		at += 2 * n
	}
	return runs
}

// writeRaw writes the raw image: random bytes, and holes.
func (c *content) writeRaw(ctx context.Context) (err error) {
	f, err := os.OpenFile(c.raw, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(c.bytes); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{seed})
	for _, e := range dataRuns(c.bytes) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		data := make([]byte, e.Length)
		_, _ = random.Read(data) // it returns no error
		if _, err := f.WriteAt(data, e.Offset); err != nil {
			return err
		}
	}
	return f.Sync()
}

// readFile reads a whole file, which brings it into the page cache.
func readFile(file string, to io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, f, make([]byte, mib))
	return errors.Join(err, f.Close())
}
