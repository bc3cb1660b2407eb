package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/s2"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/object"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/test/verdict"
)

// varveFormat is the format that Create chooses.
var varveFormat = format.ContentFormat{Hash: HashAlgorithm, Encryption: EncryptionAlgorithm, EnablePasswordChange: true}

// formatted makes a repository of this format, as kopia could, and opens it.
func formatted(tb testing.TB, f format.ContentFormat, o ConnectOptions) (r *Connection, configFile string) {
	tb.Helper()
	dir := tb.TempDir()
	at := storage.Location{Directory: filepath.Join(dir, "blobs")}
	configFile = filepath.Join(dir, "config", "repository.config")
	st, err := at.Open(tb.Context(), true)
	if err == nil {
		err = errors.Join(repo.Initialize(tb.Context(), st, &repo.NewRepositoryOptions{BlockFormat: f}, testPassword), st.Close(tb.Context()))
	}
	o.Host, o.User = "host", "varve"
	if err := errors.Join(err, Connect(tb.Context(), configFile, at, testPassword, o)); err != nil {
		tb.Fatal(err)
	}
	a, err := LoadAccess(configFile, testPassword)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := OpenConnection(tb.Context(), a, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return c, configFile
}

// store stores objects of one content each, and returns where they are, in the order of their places.
func store(tb testing.TB, r *Connection, write func(put func(data []byte, c compression.Name, prefix content.IDPrefix))) []content.Info {
	tb.Helper()
	ctx, w, err := r.Kopia.NewDirectWriter(tb.Context(), repo.WriteSessionOptions{Purpose: "test"})
	if err != nil {
		tb.Fatal(err)
	}
	var ids []content.ID
	write(func(data []byte, c compression.Name, prefix content.IDPrefix) {
		id, err := table.WriteObject(ctx, w, data, object.WriterOptions{Compressor: c, MetadataCompressor: c, Prefix: prefix, Splitter: "FIXED-4M"})
		cid, _, ok := id.ContentID()
		if err != nil || !ok {
			tb.Fatalf("%d bytes with %s: %s, %v", len(data), c, id, err)
		}
		ids = append(ids, cid)
	})
	if err := errors.Join(w.Flush(ctx), w.Close(ctx), r.Kopia.Refresh(tb.Context())); err != nil {
		tb.Fatal(err)
	}
	var infos []content.Info
	for _, id := range ids {
		infos = append(infos, r.Reader().Locate(tb.Context(), id))
	}
	slices.SortFunc(infos, CompareLocations)
	return slices.CompactFunc(infos, func(a, b content.Info) bool { return a.ContentID == b.ContentID })
}

// material returns n bytes that compress well, badly or in parts. No two results are the same.
func material(random *rand.Rand, n int, kind string) []byte {
	data := make([]byte, n)
	switch kind {
	case "text":
		for at := 0; at < n; {
			at += copy(data[at:], fmt.Sprintf("line %d of a log\n", random.Uint64()))
		}
	case "random":
		fill(random, data)
	case "parts": // S2's chunks have 1 MiB.
		fill(random, data[:n/2])
	}
	copy(data, fmt.Sprint(random.Uint64()))
	return data
}

func fill(random *rand.Rand, data []byte) {
	for i := range data {
		data[i] = byte(random.Uint32())
	}
}

// Whatever kopia has stored, direct reads give what kopia reads, one by one and in runs. What Varve writes is read directly.
func TestDirectReader_readsWhatKopiaReads(t *testing.T) {
	t.Parallel()
	repositories := map[string]*Connection{}
	for _, hash := range []string{HashAlgorithm, "BLAKE2B-256-128", "HMAC-SHA256"} {
		repositories[hash], _ = formatted(t, format.ContentFormat{Hash: hash, Encryption: EncryptionAlgorithm}, ConnectOptions{})
	}
	var names []string
	for name := range compression.ByName {
		if name != "lz4" { // kopia writes what it cannot read back.
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	known := func(name string) bool {
		return name == "" || strings.HasPrefix(name, "s2") || strings.HasPrefix(name, "zstd")
	}
	kinds := []string{"text", "random", "parts", "zeroes"}
	rapid.Check(t, func(rt *rapid.T) {
		r := repositories[rapid.SampledFrom([]string{HashAlgorithm, "BLAKE2B-256-128", "HMAC-SHA256"}).Draw(rt, "hash")]
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		with := map[content.ID]bool{}
		infos := store(t, r, func(put func([]byte, compression.Name, content.IDPrefix)) {
			for range rapid.IntRange(1, 40).Draw(rt, "contents") {
				size := rapid.OneOf(
					rapid.IntRange(1, 64<<10), rapid.SampledFrom([]int{256 << 10, 1 << 20, 1<<20 + 1, 4 << 20}),
				).Draw(rt, "size")
				name := rapid.SampledFrom(append(names, "", "s2-default", "zstd-fastest")).Draw(rt, "compressor")
				put(material(random, size, rapid.SampledFrom(kinds).Draw(rt, "kind")), compression.Name(name),
					rapid.SampledFrom([]content.IDPrefix{"", "x"}).Draw(rt, "prefix"))
			}
		})
		want := map[content.ID][]byte{}
		for _, info := range infos {
			data, err := r.Kopia.ContentReader().GetContent(t.Context(), info.ContentID)
			if err != nil {
				rt.Fatal(err)
			}
			want[info.ContentID] = data
			name := string(compression.HeaderIDToName[info.CompressionHeaderID])
			got, ok := r.direct.readContent(t.Context(), info)
			with[info.ContentID] = ok
			if ok != known(name) || (ok && !bytes.Equal(got, data)) {
				verdict.Fatalf(rt, "%d bytes with %q: read directly %t, equal %t", len(data), name, ok, bytes.Equal(got, data))
			}
			if got, err := r.Reader().GetContent(t.Context(), info.ContentID); err != nil || !bytes.Equal(got, data) {
				verdict.Fatalf(rt, "%d bytes with %q: %v", len(data), name, err)
			}
		}
		if rapid.Bool().Draw(rt, "shuffled") {
			random.Shuffle(len(infos), func(i, j int) { infos[i], infos[j] = infos[j], infos[i] })
		}
		next := 0
		err := r.Reader().Contents(t.Context(), infos, func(i int, data []byte, err error) error {
			if i != next || err != nil || !bytes.Equal(data, want[infos[i].ContentID]) {
				verdict.Fatalf(rt, "content %d came as %d: %v, equal %t", next, i, err, bytes.Equal(data, want[infos[i].ContentID]))
			}
			next++
			return nil
		})
		if err != nil || next != len(infos) {
			rt.Fatalf("%d of %d: %v", next, len(infos), err)
		}
	})
}

// kopia reads what is encrypted in another way. With a cache it reads single contents only.
func TestDirectReader_leavesTheRestToKopia(t *testing.T) {
	t.Parallel()
	plain := format.ContentFormat{Hash: HashAlgorithm, Encryption: EncryptionAlgorithm}
	for name, test := range map[string]struct {
		format  format.ContentFormat
		connect ConnectOptions
		direct  bool
	}{
		"plain":      {format: plain, direct: true},
		"cache":      {format: plain, connect: ConnectOptions{CacheDirectory: t.TempDir(), CacheBytes: 64 << 20}, direct: true},
		"ChaCha20":   {format: format.ContentFormat{Hash: HashAlgorithm, Encryption: "CHACHA20-POLY1305-HMAC-SHA256"}},
		"correction": {format: format.ContentFormat{Hash: HashAlgorithm, Encryption: EncryptionAlgorithm, ECC: "REED-SOLOMON-CRC32", ECCOverheadPercent: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := formatted(t, test.format, test.connect)
			if (r.direct != nil) != test.direct {
				t.Errorf("read directly: %t", r.direct != nil)
			}
			random := rand.New(rand.NewPCG(3, 3))
			data := material(random, 1<<20, "text")
			infos := store(t, r, func(put func([]byte, compression.Name, content.IDPrefix)) { put(data, "s2-default", "") })
			if got, err := r.Reader().GetContent(t.Context(), infos[0].ContentID); err != nil || !bytes.Equal(got, data) {
				verdict.Errorf(t, "%v", err)
			}
			err := r.Reader().Contents(t.Context(), infos, func(_ int, got []byte, err error) error {
				if !bytes.Equal(got, data) {
					verdict.Errorf(t, "%v", err)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Wherever a content is damaged, the only result is what kopia says, and the neighbours in the pack are still read.
func TestDirectReader_readsNothingDamaged(t *testing.T) {
	t.Parallel()
	r, config := formatted(t, varveFormat, ConnectOptions{})
	random := rand.New(rand.NewPCG(4, 4))
	var want [][]byte
	infos := store(t, r, func(put func([]byte, compression.Name, content.IDPrefix)) {
		for _, c := range []compression.Name{"", "s2-default", "zstd", ""} {
			want = append(want, material(random, 100<<10, "text"))
			put(want[len(want)-1], c, "")
		}
	})
	file := packFile(t, config, infos[0].PackBlobID)
	whole, err := os.ReadFile(file)
	if err != nil || len(infos) != 4 || infos[3].PackBlobID != infos[0].PackBlobID {
		t.Fatalf("%+v, %v", infos, err)
	}
	kopia := &ContentReader{rep: r.Kopia}
	for victim := range 3 {
		place := infos[victim]
		start, length := int(place.PackOffset), int(place.PackedLength)
		damages := map[string][]byte{"cut": whole[:start+length/2], "gone": nil}
		// The nonce, the headers of the compressor, of the stream and of the first chunk, its data, the last byte, the tag.
		for _, at := range []int{0, 11, 12, 15, 16, 25, 26, 30, 34, length / 2, length - 17, length - 16, length - 1} {
			data := slices.Clone(whole)
			data[start+at] ^= 1
			damages[fmt.Sprintf("byte %d", at)] = data
		}
		for name, data := range damages {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if data != nil {
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, kopias := kopia.GetContent(t.Context(), place.ContentID)
			same := func(err error) bool {
				return err != nil && kopias != nil && err.Error() == kopias.Error() && errors.Is(table.WrapReadError("read", err), errclass.Corrupt)
			}
			if _, ok := r.direct.readContent(t.Context(), place); ok {
				t.Errorf("content %d, %s: it was read", victim, name)
			}
			if _, err := r.Reader().GetContent(t.Context(), place.ContentID); !same(err) {
				t.Errorf("content %d, %s: %v\nkopia: %v", victim, name, err, kopias)
			}
			calls := 0
			err := r.Reader().Contents(t.Context(), infos, func(i int, got []byte, err error) error {
				calls++
				switch {
				case i == victim && !same(err):
					t.Errorf("content %d in a run, %s: %v\nkopia: %v", victim, name, err, kopias)
				case strings.HasPrefix(name, "byte") && i != victim && (err != nil || !bytes.Equal(got, want[i])):
					verdict.Errorf(t, "content %d, %s: its neighbour %d: %v", victim, name, i, err)
				}
				return nil
			})
			if err != nil || calls != len(infos) {
				t.Errorf("content %d, %s: %d calls, %v", victim, name, calls, err)
			}
			if err := os.WriteFile(file, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The caller of Contents can end it.
func TestContents_endWithTheCaller(t *testing.T) {
	t.Parallel()
	r, _ := formatted(t, varveFormat, ConnectOptions{})
	random := rand.New(rand.NewPCG(5, 5))
	infos := store(t, r, func(put func([]byte, compression.Name, content.IDPrefix)) {
		for range 3 {
			put(material(random, 10<<10, "random"), "", "")
		}
	})
	enough := errors.New("enough")
	for _, read := range []*ContentReader{r.Reader(), {rep: r.Kopia}} {
		calls := 0
		err := read.Contents(t.Context(), infos, func(int, []byte, error) error {
			calls++
			return enough
		})
		if !errors.Is(err, enough) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
}

// s2.Reader decodes what decodeS2 decodes, to the same; decodeS2 decodes what s2.Writer has written.
func FuzzDecodeS2(f *testing.F) {
	f.Add([]byte(s2Stream), uint8(1))
	f.Add([]byte(strings.Repeat("some text ", 1000)), uint8(3))
	f.Add([]byte(s2Stream+"\x00\x05\x00\x00\x00\x00\x00\x00\x00"), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, at uint8) {
		check := func(stream []byte, whole bool) {
			want, err := io.ReadAll(s2.NewReader(bytes.NewReader(stream)))
			room := make([]byte, 3, 3+len(want))
			got, ok := decodeS2(stream, room[3:])
			if ok && (err != nil || !bytes.Equal(got, want)) {
				verdict.Fatalf(t, "%x: %d bytes, and %d of s2.Reader: %v", stream, len(got), len(want), err)
			}
			if whole && !ok {
				t.Fatalf("%x was not decoded", stream)
			}
			if len(want) > 0 {
				if _, ok := decodeS2(stream, make([]byte, 0, len(want)-1)); ok {
					t.Fatalf("%x fits into less than %d bytes", stream, len(want))
				}
			}
		}
		check(data, false)
		var stream bytes.Buffer
		w := s2.NewWriter(&stream, s2.WriterBlockSize(4<<10))
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		check(stream.Bytes(), len(data) > 0)
		if damaged := stream.Bytes(); len(damaged) > 0 {
			damaged[int(at)%len(damaged)] ^= 1 << (at % 8)
			check(damaged, false)
		}
	})
}

// A buffer takes what fits, however it arrives.
func TestBuffer(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "with EOF": iotest.DataErrReader,
	} {
		for length, fits := range map[int]bool{0: true, 9: true, 10: true, 11: false, 30: false} {
			data := bytes.Repeat([]byte{7}, length)
			b := make(fixedBuffer, 0, 10)
			n, err := b.ReadFrom(wrap(bytes.NewReader(data)))
			if fits && (err != nil || int(n) != length || !bytes.Equal(b, data)) || !fits && !errors.Is(err, io.ErrShortBuffer) {
				verdict.Errorf(t, "%s: %d of %d bytes: %v", name, n, length, err)
			}
			b.Reset()
			written, err := b.Write(data)
			if fits && (err != nil || written != length || b.Length() != length) || !fits && !errors.Is(err, io.ErrShortBuffer) {
				t.Errorf("%d of %d bytes were written: %v", written, length, err)
			}
		}
	}
	broken := errors.New("broken")
	b := make(fixedBuffer, 0, 10)
	if _, err := b.ReadFrom(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// BenchmarkContents reads adjacent blocks as a restore does. The decompressed bytes count.
func BenchmarkContents(b *testing.B) {
	r, _ := formatted(b, varveFormat, ConnectOptions{})
	random := rand.New(rand.NewPCG(6, 6))
	infos := store(b, r, func(put func([]byte, compression.Name, content.IDPrefix)) {
		for i := range 64 {
			put(material(random, 256<<10, []string{"text", "random"}[i%2]), []compression.Name{"s2-default", ""}[i%2], "")
		}
	})
	for _, reader := range []struct {
		name string
		read *ContentReader
	}{{"direct", r.Reader()}, {"kopia", &ContentReader{rep: r.Kopia}}} {
		b.Run(reader.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(infos)) * 256 << 10)
			for b.Loop() {
				err := reader.read.Contents(b.Context(), infos, func(_ int, _ []byte, err error) error { return err })
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
