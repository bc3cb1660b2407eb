package stream_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the golden file")

func describe(v *exporttest.Volume, from int64) stream.Volume {
	d := v.Description
	return stream.Volume{Name: d.Name, Bytes: d.Bytes, Incremental: d.Incremental, PointInTime: d.PointInTime, From: from}
}

// encode writes a stream of volumes whose frames interleave.
func encode(t *testing.T, w io.Writer, from []int64, volumes ...*exporttest.Volume) {
	t.Helper()
	var header []stream.Volume
	for i, v := range volumes {
		header = append(header, describe(v, from[i]))
	}
	e, err := stream.NewEncoder(w, header)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i, v := range volumes {
		group.Go(func() {
			part := extent.Extent{Offset: from[i], Length: v.Description.Bytes - from[i]}
			if err := v.Read(context.Background(), part, export.Changed, func(c export.Chunk) error { return e.WriteChunk(i, c) }); err != nil {
				t.Error(err)
			}
			if err := e.WriteKeepalive(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// apply reads frames into disks until the stream ends, and returns the positions.
func apply(r io.Reader, disks [][]byte) ([]int64, error) {
	d, err := stream.NewDecoder(r)
	if err != nil {
		return nil, err
	}
	for {
		f, err := d.Next()
		if errors.Is(err, io.EOF) && !errors.Is(err, errclass.Transient) {
			return d.Positions(), nil
		}
		if err != nil {
			return d.Positions(), err
		}
		if f.Data == nil {
			clear(disks[f.Volume][f.Offset:f.End()])
		}
		copy(disks[f.Volume][f.Offset:f.End()], f.Data)
	}
}

func pair() []*exporttest.Volume {
	return []*exporttest.Volume{exporttest.NewVolume("root", 1<<20+512, false, 1), exporttest.NewVolume("data", 3<<20, true, 2)}
}

// base is a disk before an incremental: different from it in each dirty block, and the same elsewhere.
func base(v *exporttest.Volume) []byte {
	disk := bytes.Clone(v.Content)
	for i := range disk {
		if !v.Description.Incremental || v.Dirty[i/exporttest.BlockBytes] {
			disk[i] = ^disk[i]
		}
	}
	return disk
}

func TestStream_bringsEveryByte(t *testing.T) {
	t.Parallel()
	volumes := pair()
	var wire bytes.Buffer
	encode(t, &wire, []int64{0, 0}, volumes...)
	disks := [][]byte{base(volumes[0]), base(volumes[1])}
	positions, err := apply(iotest.HalfReader(&wire), disks)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range volumes {
		if !bytes.Equal(disks[i], v.Content) {
			verdict.Errorf(t, "volume %s has other bytes", v.Description.Name)
		}
	}
	if positions[0] != volumes[0].Description.Bytes {
		t.Errorf("the full volume ends at %d", positions[0])
	}
}

// A stream that is cut anywhere is never mistaken for a whole one, and is continued without loss.
func TestStream_cutAnywhereIsContinued(t *testing.T) {
	t.Parallel()
	volumes := pair()
	var wire bytes.Buffer
	encode(t, &wire, []int64{0, 0}, volumes...)
	for cut := 0; cut < wire.Len(); cut += 1 + cut/7 {
		disks := [][]byte{base(volumes[0]), base(volumes[1])}
		positions, err := apply(bytes.NewReader(wire.Bytes()[:cut]), disks)
		if !errors.Is(err, errclass.Transient) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d of %d: %v", cut, wire.Len(), err)
		}
		if positions == nil {
			continue
		}
		var rest bytes.Buffer
		encode(t, &rest, positions, volumes...)
		if _, err := apply(&rest, disks); err != nil {
			t.Fatalf("continued from %v: %v", positions, err)
		}
		for i, v := range volumes {
			if !bytes.Equal(disks[i], v.Content) {
				verdict.Fatalf(t, "cut at %d: volume %s has other bytes", cut, v.Description.Name)
			}
		}
	}
}

// small is a stream of a few hundred bytes with a frame of each type.
func small(tb testing.TB) []byte {
	tb.Helper()
	var wire bytes.Buffer
	e, err := stream.NewEncoder(&wire, []stream.Volume{
		{Name: "root", Bytes: 4096, PointInTime: "root-1"},
		{Name: "data", Bytes: 1 << 40, Incremental: true, PointInTime: "data-1", From: 512},
	})
	if err != nil {
		tb.Fatal(err)
	}
	text := []byte("what the guest wrote")
	for _, c := range []struct {
		volume int
		chunk  export.Chunk
	}{
		{1, export.Chunk{Extent: extent.Extent{Offset: 1 << 30, Length: int64(len(text))}, Data: text, Checksum: export.Checksum(text)}},
		{0, export.Chunk{Extent: extent.Extent{Length: 4096}}},
		{1, export.Chunk{Extent: extent.Extent{Offset: 1 << 35, Length: 1 << 38}}},
	} {
		if err := e.WriteChunk(c.volume, c.chunk); err != nil {
			tb.Fatal(err)
		}
	}
	if err := e.WriteKeepalive(); err != nil {
		tb.Fatal(err)
	}
	if err := e.Close(); err != nil {
		tb.Fatal(err)
	}
	return wire.Bytes()
}

func TestStream_everyFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	whole := small(t)
	for i := range len(whole) * 8 {
		damaged := bytes.Clone(whole)
		damaged[i/8] ^= 1 << (i % 8)
		if n, err := drain(damaged); err == nil {
			t.Errorf("bit %d of byte %d: %d frames and no error", i%8, i/8, n)
		}
	}
	if _, err := drain(append(bytes.Clone(whole), 0)); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("a byte after the end: %v", err)
	}
}

func drain(wire []byte) (frames int, err error) {
	d, err := stream.NewDecoder(bytes.NewReader(wire))
	for err == nil {
		if _, err = d.Next(); err == nil {
			frames++
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return frames, err
}

func TestStream_versionOneStaysReadable(t *testing.T) {
	t.Parallel()
	const golden = "testdata/v1.stream"
	have := small(t)
	if *update {
		if err := os.WriteFile(golden, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf(verdict.GoldenMark+"the encoder writes other bytes than before: %v", err)
	}
	d, err := stream.NewDecoder(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = d.Next()
	}
	if diff := cmp.Diff([]stream.Totals{{ZeroBytes: 4096, Frames: 1}, {DataBytes: 20, ZeroBytes: 1 << 38, Frames: 2}}, d.Totals()); diff != "" || !errors.Is(err, io.EOF) {
		t.Errorf(verdict.GoldenMark+"%v %s", err, diff)
	}
}

func TestEncoder_refusesWhatNoDecoderTakes(t *testing.T) {
	t.Parallel()
	zeroes := func(offset, length int64) export.Chunk {
		return export.Chunk{Extent: extent.Extent{Offset: offset, Length: length}}
	}
	for name, chunks := range map[string][]export.Chunk{
		"gap in a full volume": {zeroes(0, 512), zeroes(1024, 3072)},
		"back":                 {zeroes(0, 1024), zeroes(512, 1024)},
		"beyond the end":       {zeroes(0, 8192)},
		"empty":                {zeroes(0, 0)},
		"overflow":             {zeroes(1<<62, 1<<62)},
		"not whole":            {zeroes(0, 512)},
		"short data":           {{Extent: extent.Extent{Length: 512}, Data: make([]byte, 100)}},
		"long data":            {{Extent: extent.Extent{Length: 2 << 20}, Data: make([]byte, 2<<20)}},
	} {
		e, err := stream.NewEncoder(io.Discard, []stream.Volume{{Name: "root", Bytes: 4096}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chunks {
			err = errors.Join(err, e.WriteChunk(0, c))
		}
		if err = errors.Join(err, e.Close()); !errors.Is(err, errclass.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, volumes := range map[string][]stream.Volume{
		"twice": {{Name: "a"}, {Name: "a"}}, "no name": {{}}, "from": {{Name: "a", Bytes: 1, From: 2}}, "many": make([]stream.Volume, 1025),
	} {
		if _, err := stream.NewEncoder(io.Discard, volumes); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecoder_returnsTheServersError(t *testing.T) {
	t.Parallel()
	var wire bytes.Buffer
	e, err := stream.NewEncoder(&wire, []stream.Volume{{Name: "root", Bytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.WriteError("root", errclass.Errorf(errclass.Exhausted, "the scratch volume is full")); err != nil {
		t.Fatal(err)
	}
	_, err = drain(wire.Bytes())
	if !errors.Is(err, errclass.Exhausted) || err.Error() != "volume root: the scratch volume is full" {
		t.Errorf("%v", err)
	}
}

// The end marker's totals are compared with what came, even if every frame holds by itself.
func TestDecoder_noticesALostFrame(t *testing.T) {
	t.Parallel()
	whole := small(t)
	// The keepalive is no loss; a frame of the incremental volume is.
	heads := frameOffsets(t, whole)
	for i, at := range heads[1 : len(heads)-1] {
		next := heads[i+2]
		_, err := drain(slices.Concat(whole[:at], whole[next:]))
		if keepalive := whole[at] == 'K'; keepalive != (err == nil) {
			t.Errorf("without frame %d of type %c: %v", i, whole[at], err)
		}
	}
}

func frameOffsets(t *testing.T, wire []byte) (offsets []int) {
	t.Helper()
	for at := 16; at < len(wire); {
		offsets = append(offsets, at)
		length := 0
		if wire[at] != 'Z' {
			length = int(wire[at+22])<<8 | int(wire[at+23])
		}
		at += 32 + length
	}
	return offsets
}

// repair sets the checksums of frames, so that the fuzzer comes to what is behind them.
func repair(wire []byte) {
	for at := 16; at+32 <= len(wire); {
		head := wire[at : at+32]
		length := 0
		if head[0] != 'Z' {
			length = min(int(head[22])<<8|int(head[23]), len(wire)-at-32)
			binary.BigEndian.PutUint32(head[24:], export.Checksum(wire[at+32:at+32+length]))
		}
		binary.BigEndian.PutUint32(head[28:], export.Checksum(head[:28]))
		at += 32 + length
	}
}

// FuzzDecoder checks that no input makes the decoder panic, allocate without bound, or return a frame that is not in its volume.
func FuzzDecoder(f *testing.F) {
	f.Add(small(f))
	f.Add([]byte("VARVESTR\x00\x00\x00\x01\x00\x00\x00\x00H"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		repair(wire)
		d, err := stream.NewDecoder(bytes.NewReader(wire))
		if err != nil {
			return
		}
		next := d.Positions()
		for {
			frame, err := d.Next()
			if err != nil {
				return
			}
			v := d.Volumes()[frame.Volume]
			if frame.Offset < next[frame.Volume] || frame.End() > v.Bytes || frame.Empty() || (frame.Data != nil && int64(len(frame.Data)) != frame.Length) {
				t.Fatalf("frame %v of volume %+v after %d", frame.Extent, v, next[frame.Volume])
			}
			next[frame.Volume] = frame.End()
		}
	})
}

func BenchmarkDecoder(b *testing.B) {
	volume := exporttest.NewVolume("root", 64<<20, false, 1)
	var wire bytes.Buffer
	e, err := stream.NewEncoder(&wire, []stream.Volume{describe(volume, 0)})
	if err != nil {
		b.Fatal(err)
	}
	if err := volume.Read(b.Context(), extent.Extent{Length: 64 << 20}, export.Changed, func(c export.Chunk) error { return e.WriteChunk(0, c) }); err != nil {
		b.Fatal(err)
	}
	if err := e.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := drain(wire.Bytes()); err != nil {
			b.Fatal(err)
		}
	}
}
