package engine

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	stdhash "hash" // this package has its own hash type
	"io"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// runBytes is how much of adjacent contents in a pack is fetched at once. Requests cost time, and what does not fit into the
// processor's caches is copied slowly. A request to a server costs more: the way there and back, a signature, and what the server
// does with each, which with 1 MiB was a third of its work.
const (
	runBytes       = 1 << 20
	serverRunBytes = 4 << 20
)

// directBytes is the largest content that is read directly. Varve's contents have 4 MiB at most.
const directBytes = 16 << 20

// directReader reads contents from the storage that kopia reads them from. It decrypts them in place and decompresses them to where
// they are wanted; kopia itself copies each byte four times more. It knows what Varve writes. It leaves everything else to kopia,
// including everything that is wrong with a content, and has no errors of its own. It is safe for concurrent use.
type directReader struct {
	blobs blob.Reader
	// run is the length of the longest run.
	run int64
	// keys holds the keyed hashes that derive the contents' keys, and scratch holds *scratch.
	keys, scratch sync.Pool
}

// readDirectly sets direct, unless the repository is encrypted in another way or has error correction: kopia must then read
// everything. If the connection has a cache, kopia reads single contents, and uses and fills the cache. Restore and
// verify bypass the cache. They read everything once and in the order of the packs, so a cache of single contents is of no use to
// them, and fetching contents one by one takes several times as many requests.
func (c *Connection) readDirectly() error {
	f := c.Kopia.ContentReader().ContentFormat()
	if f.GetEncryptionAlgorithm() != EncryptionAlgorithm || (f.GetECCAlgorithm() != "" && f.GetECCOverheadPercent() > 0) {
		return nil
	}
	// This is how kopia's package encryption derives it.
	secret, err := hkdf.Key(sha256.New, f.GetMasterKey(), []byte("encryption"), "", sha256.Size)
	if err != nil {
		return fmt.Errorf("key of the contents: %w", err)
	}
	d := &directReader{blobs: c.Kopia.BlobReader(), run: runBytes}
	if !storage.IsDirectory(d.blobs) {
		d.run = serverRunBytes
	}
	d.keys.New = func() any { return hmac.New(sha256.New, secret) }
	d.scratch.New = func() any { return &scratch{} }
	c.direct = d
	return nil
}

// scratch is the memory of one reader.
type scratch struct{ fetched, plain []byte }

// readContent returns a content for the caller to keep.
func (d *directReader) readContent(ctx context.Context, info content.Info) (data []byte, ok bool) {
	if !d.canRead(&info) {
		return nil, false
	}
	s, _ := d.scratch.Get().(*scratch)
	defer d.scratch.Put(s)
	memory, plain := &s.fetched, []byte(nil)
	if info.CompressionHeaderID == content.NoCompression {
		memory = new([]byte) // The fetched bytes are decrypted in place and kept.
	} else {
		plain = make([]byte, 0, info.OriginalLength)
	}
	packed, ok := d.fetchPacked(ctx, info.PackBlobID, int64(info.PackOffset), int64(info.PackedLength), memory)
	if !ok {
		return nil, false
	}
	return d.unsealContent(info, packed, plain)
}

// canRead says whether a content may be read directly. A content that no index has is in no pack.
func (d *directReader) canRead(info *content.Info) bool {
	return d != nil && info.PackBlobID != "" && info.PackedLength <= directBytes && info.OriginalLength <= directBytes
}

// extendsRun says whether b lies right behind a and can be fetched with it, in the run that began at start.
func (d *directReader) extendsRun(start, a, b *content.Info) bool {
	return d.canRead(b) && b.PackBlobID == start.PackBlobID && int64(b.PackOffset) == int64(a.PackOffset)+int64(a.PackedLength) &&
		int64(b.PackOffset)+int64(b.PackedLength)-int64(start.PackOffset) <= d.run
}

// readRun calls take with the contents of a run, in order. It returns how many contents came before one that could not be read, and
// take's error. The data is valid until take returns.
func (d *directReader) readRun(ctx context.Context, infos []content.Info, take func(i int, data []byte) error) (n int, err error) {
	if !d.canRead(&infos[0]) {
		return 0, nil
	}
	s, _ := d.scratch.Get().(*scratch)
	defer d.scratch.Put(s)
	first, last := &infos[0], &infos[len(infos)-1]
	start := int64(first.PackOffset)
	packed, ok := d.fetchPacked(ctx, first.PackBlobID, start, int64(last.PackOffset)+int64(last.PackedLength)-start, &s.fetched)
	if !ok {
		return 0, nil
	}
	for i, info := range infos {
		at := int64(info.PackOffset) - start
		if cap(s.plain) < int(info.OriginalLength) {
			s.plain = make([]byte, 0, info.OriginalLength)
		}
		data, ok := d.unsealContent(info, packed[at:at+int64(info.PackedLength)], s.plain[:0])
		if !ok {
			return i, nil
		}
		if err := take(i, data); err != nil {
			return i, err
		}
	}
	return len(infos), nil
}

// fetchPacked reads length bytes of a pack into memory, which it replaces if that is too short.
func (d *directReader) fetchPacked(ctx context.Context, pack blob.ID, offset, length int64, memory *[]byte) ([]byte, bool) {
	if int64(cap(*memory)) < length {
		*memory = make([]byte, length)
	}
	b := fixedBuffer((*memory)[:0:length])
	err := d.blobs.GetBlob(ctx, pack, offset, length, &b)
	return b, err == nil && int64(len(b)) == length
}

// unsealContent decrypts a content in place. If it is compressed, unsealContent decompresses it to plain, which is empty, within
// plain's capacity. The result lies in packed or plain.
func (d *directReader) unsealContent(info content.Info, packed, plain []byte) ([]byte, bool) {
	data, ok := d.decryptContent(info, packed)
	if !ok {
		return nil, false
	}
	if info.CompressionHeaderID != content.NoCompression {
		if data, ok = decompress(info.CompressionHeaderID, data, plain); !ok {
			return nil, false
		}
	}
	return data, len(data) == int(info.OriginalLength)
}

// decryptContent does what kopia's AES256-GCM-HMAC-SHA256 does: the content's key is derived from the end of its hash, which is
// authenticated along with the content. The nonce comes first.
func (d *directReader) decryptContent(info content.Info, packed []byte) ([]byte, bool) {
	hashed := info.ContentID.Hash()
	if len(hashed) < aes.BlockSize || info.EncryptionKeyID != 0 {
		return nil, false
	}
	iv := hashed[len(hashed)-aes.BlockSize:]
	aead, err := d.contentCipher(iv)
	if err != nil || len(packed) < aead.NonceSize()+aead.Overhead() {
		return nil, false
	}
	sealed := packed[aead.NonceSize():]
	data, err := aead.Open(sealed[:0], packed[:aead.NonceSize()], sealed, iv)
	return data, err == nil
}

func (d *directReader) contentCipher(iv []byte) (cipher.AEAD, error) {
	h, _ := d.keys.Get().(stdhash.Hash)
	defer d.keys.Put(h)
	h.Reset()
	h.Write(iv)
	var key [sha256.Size]byte
	c, err := aes.NewCipher(h.Sum(key[:0]))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(c)
}

// fixedBuffer takes what a storage reads, up to its capacity. Storages copy to it directly because it is an io.ReaderFrom.
type fixedBuffer []byte

// Reset implements blob.OutputBuffer.
func (b *fixedBuffer) Reset() { *b = (*b)[:0] }

// Length implements blob.OutputBuffer.
func (b *fixedBuffer) Length() int { return len(*b) }

// Write implements blob.OutputBuffer.
func (b *fixedBuffer) Write(p []byte) (int, error) {
	if len(p) > cap(*b)-len(*b) {
		return 0, io.ErrShortBuffer
	}
	*b = append(*b, p...)
	return len(p), nil
}

// ReadFrom implements io.ReaderFrom.
func (b *fixedBuffer) ReadFrom(r io.Reader) (n int64, err error) {
	for {
		var more [1]byte
		into := (*b)[len(*b):cap(*b)]
		if len(into) == 0 {
			into = more[:]
		}
		m, err := r.Read(into)
		if m > 0 && len(*b) == cap(*b) {
			return n, io.ErrShortBuffer
		}
		*b, n = (*b)[:len(*b)+m], n+int64(m)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
