package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// whole returns a frame with its tail.
func whole(f frame, tail ...byte) []byte {
	f.tail = uint32(len(tail))
	return append(f.appendTo(nil), tail...)
}

func piece(stream uint32, offset int64, data ...byte) []byte {
	return whole(frame{kind: frameData, stream: stream, extent: extent.Extent{Offset: offset}, checksum: export.Checksum(data)}, data...)
}

var goodInfos = []export.Info{{Name: "disk", Bytes: 1 << 20, Incremental: true, PointInTime: "now"}, {Name: "other", Bytes: 4096}}

func goodOffer() []byte {
	return whole(frame{kind: frameOffer, count: 8}, encodeVolumes(goodInfos)...)
}

var (
	somewhere = extent.Extent{Offset: 4096, Length: 8192}
	goodRead  = frame{kind: frameRead, stream: 1, count: minCreditBytes, extent: somewhere}
	goodPage  = frame{kind: frameRegions, stream: 2, count: 3, extent: somewhere}
)

// Every frame is read as it was written, and nothing else is read.
func FuzzFrame(f *testing.F) {
	f.Add(goodOffer(), true)
	f.Add(whole(goodRead), false)
	f.Add(whole(goodPage), false)
	f.Add(whole(frame{kind: frameCredit, stream: 3, count: 7}), false)
	f.Add(whole(frame{kind: frameCancel, stream: 3}), false)
	f.Add(whole(frame{kind: framePing}), true)
	f.Add(piece(1, 4096, 1, 2, 3), true)
	f.Add(whole(frame{kind: frameZero, stream: 1, extent: somewhere}), true)
	f.Add(whole(frame{kind: framePage, stream: 2}, appendRegion(nil, export.Region{Extent: somewhere, Kind: export.Zero})...), true)
	f.Add(whole(frame{kind: frameEnd, stream: 1, class: 2}, []byte("gone")...), true)
	f.Fuzz(func(t *testing.T, b []byte, launcher bool) {
		r := frameReader{from: bytes.NewReader(b), launcher: launcher}
		got, err := r.readFrame()
		if err != nil {
			return
		}
		shape := frameShapes[got.kind]
		if n := headerBytes + int(shape.fixed); !bytes.Equal(got.appendTo(nil), b[:n]) {
			t.Errorf("%x is %+v", b[:n], got)
		}
		if got.tail > shape.most || got.tail > maxPieceBytes || !got.extent.Valid() {
			t.Errorf("%+v", got)
		}
	})
}

func FuzzVolumes(f *testing.F) {
	f.Add(encodeVolumes(goodInfos))
	f.Add(encodeVolumes(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		infos, err := parseVolumes(b)
		if err == nil && (!bytes.Equal(encodeVolumes(infos), b) || checkVolumes(infos) != nil) {
			t.Errorf("%x is %+v", b, infos)
		}
	})
}

func FuzzPage(f *testing.F) {
	page := appendRegion(nil, export.Region{Extent: extent.Extent{Length: 512}, Kind: export.Data})
	f.Add(appendRegion(page, export.Region{Extent: extent.Extent{Length: 4096}, Kind: export.Clean}), int64(7), int64(1<<20), true)
	f.Fuzz(func(t *testing.T, b []byte, offset, length int64, incremental bool) {
		e := extent.Extent{Offset: offset, Length: length}
		if !e.Valid() {
			return
		}
		b = b[:len(b)-len(b)%regionBytes]
		var again []byte
		at := e.Offset
		end, err := parsePage(b, e, incremental, func(r export.Region) bool {
			if r.Offset != at || r.Empty() || !e.Contains(r.Extent) || r.Kind == export.Clean && !incremental {
				t.Errorf("%v of kind %d at %d, of %v", r.Extent, r.Kind, at, e)
			}
			again, at = appendRegion(again, r), r.End()
			return true
		})
		if err == nil && (end != at || !bytes.Equal(again, b)) {
			t.Errorf("%x is %x, to %d", b, again, end)
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(goodHello(1, 2).encode())
	f.Add(welcome{version: 1, lowest: 1, highest: 2}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, said, err := readHello(bytes.NewReader(b)); err == nil && (!bytes.Equal(h.encode(), said) || !bytes.HasPrefix(b, said)) {
			t.Errorf("%x is %+v", b, h)
		}
		if len(b) >= welcomeBytes {
			if w, err := parseWelcome(b[:welcomeBytes]); err == nil && !bytes.Equal(w.encode(), b[:welcomeBytes]) {
				t.Errorf("%x is %+v", b, w)
			}
		}
	})
}

// script is a connection whose peer has said everything before, or says the second half after it has heard something.
type script struct {
	net.Conn
	first, then *bytes.Reader
	heard       chan struct{}
	once        sync.Once
}

func newScript(first, then []byte) *script {
	return &script{first: bytes.NewReader(first), then: bytes.NewReader(then), heard: make(chan struct{})}
}

func (s *script) Read(b []byte) (int, error) {
	if n, err := s.first.Read(b); err == nil {
		return n, nil
	}
	<-s.heard
	return s.then.Read(b)
}

func (s *script) hear() { s.once.Do(func() { close(s.heard) }) }

func (s *script) Write(b []byte) (int, error) {
	s.hear()
	return len(b), nil
}

func (s *script) Close() error {
	s.hear()
	return nil
}

var scriptDisk = sync.OnceValue(func() *exporttest.Volume { return exporttest.NewVolume("disk", 1<<20, true, 1) })

// serveScript is a launcher whose far end says something, and then ends.
func serveScript(tb testing.TB, says []byte) error {
	tb.Helper()
	disk, other := scriptDisk(), exporttest.NewVolume("other", 4096, false, 1)
	l := &launcher{
		cfg: Config{Requests: 8, Workers: 2}.withDefaults(), volumes: exporttest.Volumes{"disk": disk, "other": other}, infos: []export.Info{disk.Info(), other.Info()},
	}
	peer := newScript(says, nil)
	peer.hear()
	s := newSocket(peer)
	s.enterSession()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return newServing(l, s, s).serveUntilEnd(ctx)
}

// readScript reads a volume and its regions from a launcher that says something, and then ends.
func readScript(tb testing.TB, offer, says []byte) (session, read, regions error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	server := &Server{BackupUID: testUID, Limits: Limits{Requests: 8}}
	// What follows the offer is said when the requests are there.
	rest := bytes.NewReader(offer)
	r := frameReader{from: rest, launcher: true}
	f, err := r.readFrame()
	if err == nil {
		err = r.readTail(make([]byte, f.tail))
	}
	first := len(offer) - rest.Len()
	peer := newScript(offer[:first], slices.Concat(offer[first:], says))
	if err != nil {
		peer.hear() // there will be no request to wait for
	}
	sock := newSocket(peer)
	sock.enterSession()
	s := newSession(server, sock, sock, server.Limits.withDefaults(), end)
	server.current = s
	result := make(chan error)
	go func() { result <- s.runToEnd(ended) }()
	up := make(chan error, 1)
	go func() { up <- server.Wait(ended) }()
	select {
	case session = <-result:
		end(nil)
		<-up
		return session, nil, nil
	case <-up:
	}
	if !slices.Contains(s.infos, goodInfos[0]) || cap(s.slots) < 2 {
		peer.hear() // there will be no requests
		return <-result, nil, nil
	}
	v := &volume{server: server, info: goodInfos[0]}
	// Both are in flight before the launcher hears of any: their frames go out together.
	s.outbox.mu.Lock()
	var all sync.WaitGroup
	all.Go(func() { _, _, read = readAll(ctx, v, somewhere, export.Everything) })
	waitUntil(tb, "the read", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.number == 1 })
	all.Go(func() { regions = v.Regions(ctx, somewhere, func(export.Region) bool { return true }) })
	waitUntil(tb, "the page", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.number == 2 })
	s.outbox.mu.Unlock()
	session = <-result
	all.Wait()
	if used := server.buffers.used.Load(); used != 0 {
		tb.Errorf("%d bytes of buffers were lost", used)
	}
	return session, read, regions
}

// FuzzLauncher: whatever a far end says, the launcher does not panic, hang, or use memory without bound.
func FuzzLauncher(f *testing.F) {
	f.Add(slices.Concat(whole(goodRead), whole(goodPage), whole(frame{kind: framePing})))
	f.Add(slices.Concat(whole(goodRead), whole(frame{kind: frameCredit, stream: 1, count: 1 << 16}), whole(frame{kind: frameCancel, stream: 1})))
	f.Fuzz(func(t *testing.T, says []byte) {
		if err := serveScript(t, says); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// FuzzSession: whatever a launcher says, the far end does not panic, hang, lose memory, or take it for success unless it is.
func FuzzSession(f *testing.F) {
	content := slices.Concat(piece(1, 4096, make([]byte, 4096)...), whole(frame{kind: frameZero, stream: 1, extent: extent.Extent{Offset: 8192, Length: 4096}}))
	page := appendRegion(nil, export.Region{Extent: extent.Extent{Length: somewhere.Length}, Kind: export.Clean})
	f.Add(goodOffer(), slices.Concat(content, whole(frame{kind: frameEnd, stream: 1}), whole(frame{kind: framePage, stream: 2}, page...)))
	f.Add(goodOffer(), slices.Concat(whole(frame{kind: frameEnd, stream: 1, class: 2}), whole(frame{kind: frameEnd, stream: 2, class: 9}, 'x')))
	f.Add(goodOffer()[:20], []byte{})
	f.Add(whole(frame{kind: frameOffer, count: 1}, encodeVolumes(goodInfos[1:])...), whole(frame{kind: framePing}))
	f.Fuzz(func(t *testing.T, offer, says []byte) {
		if session, _, _ := readScript(t, offer, says); session == nil || errors.Is(session, context.DeadlineExceeded) {
			t.Error(session)
		}
	})
}

// Every breach by the far end ends the connection, and nothing else does.
func TestBreach_byTheFarEnd(t *testing.T) {
	t.Parallel()
	many := make([]byte, 0, 1<<10)
	for i := range uint32(9) {
		f := goodRead
		f.stream = i + 1
		f.extent = extent.Extent{Length: 1 << 20} // does not end without credit
		many = append(many, whole(f)...)
	}
	change := func(f frame, change func(*frame)) []byte {
		change(&f)
		return whole(f)
	}
	patch := func(b []byte, at int, value byte) []byte {
		b = bytes.Clone(b)
		b[at] = value
		return b
	}
	for name, says := range map[string][]byte{
		"a frame of kind 0":         make([]byte, headerBytes),
		"an unknown kind":           patch(whole(goodRead), 0, 99),
		"a launcher's frame":        piece(1, 0, 1),
		"reserved bytes":            patch(whole(goodRead), 2, 1),
		"a request without stream":  change(goodRead, func(f *frame) { f.stream = 0 }),
		"a ping with a stream":      whole(frame{kind: framePing, stream: 1}),
		"a longer request":          patch(whole(goodRead), 10, 1),
		"a shorter request":         patch(whole(goodRead), 11, 23),
		"an unknown scope":          change(goodRead, func(f *frame) { f.scope = 2 }),
		"a scope for regions":       change(goodPage, func(f *frame) { f.scope = 1 }),
		"an empty extent":           change(goodRead, func(f *frame) { f.extent.Length = 0 }),
		"a negative offset":         change(goodRead, func(f *frame) { f.extent.Offset = -1 }),
		"an extent that overflows":  change(goodRead, func(f *frame) { f.extent = extent.Extent{Offset: math.MaxInt64, Length: 2} }),
		"too little credit":         change(goodRead, func(f *frame) { f.count = minCreditBytes - 1 }),
		"too much credit":           change(goodRead, func(f *frame) { f.count = maxCreditBytes + 1 }),
		"more and more credit":      slices.Concat(whole(goodRead), change(goodRead, func(f *frame) { f.stream, f.extent = 2, extent.Extent{Length: 1 << 20} }), whole(frame{kind: frameCredit, stream: 2, count: maxCreditBytes})),
		"a page of no regions":      change(goodPage, func(f *frame) { f.count = 0 }),
		"a page of many regions":    change(goodPage, func(f *frame) { f.count = maxPageRegions + 1 }),
		"a stream twice":            slices.Concat(many[:len(whole(goodRead))], many[:len(whole(goodRead))]),
		"more requests than agreed": many,
	} {
		if err := serveScript(t, says); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, says := range map[string][]byte{
		"an unknown volume":         change(goodRead, func(f *frame) { f.volume = 7 }),
		"beyond the volume":         change(goodRead, func(f *frame) { f.extent = extent.Extent{Offset: 1 << 40, Length: 1 << 40} }),
		"regions beyond":            change(goodPage, func(f *frame) { f.extent.Offset = 1 << 20 }),
		"credit for what is over":   whole(frame{kind: frameCredit, stream: 77, count: 1}),
		"cancel of what is over":    whole(frame{kind: frameCancel, stream: 77}),
		"a frame that is cut short": whole(goodRead)[:20],
	} {
		if err := serveScript(t, says); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every breach by the launcher ends the connection, and fails what was in flight with Transient.
func TestBreach_byTheLauncher(t *testing.T) {
	t.Parallel()
	region := func(kind export.Kind, length int64) []byte {
		return appendRegion(nil, export.Region{Extent: extent.Extent{Length: length}, Kind: kind})
	}
	for name, c := range map[string]struct{ offer, says []byte }{
		"no offer":                    {offer: piece(1, 0, 1)},
		"an offer of no requests":     {offer: whole(frame{kind: frameOffer}, encodeVolumes(goodInfos)...)},
		"a volume twice":              {offer: whole(frame{kind: frameOffer, count: 8}, encodeVolumes(append(goodInfos, goodInfos[0]))...)},
		"an offer that is cut short":  {offer: whole(frame{kind: frameOffer, count: 8}, 0, 3)},
		"an offer and more":           {offer: whole(frame{kind: frameOffer, count: 8}, append(encodeVolumes(goodInfos), 0)...)},
		"a second offer":              {says: goodOffer()},
		"a request":                   {says: whole(goodRead)},
		"content nobody asked for":    {says: piece(7, 4096, 1)},
		"the end of nothing":          {says: whole(frame{kind: frameEnd, stream: 7})},
		"content before the extent":   {says: piece(1, 0, 1)},
		"content after the extent":    {says: slices.Concat(piece(1, 4096, make([]byte, 8192)...), piece(1, 4096+8192, 1))},
		"content with a gap":          {says: piece(1, 4097, 1)},
		"content twice":               {says: slices.Concat(piece(1, 4096, 1), piece(1, 4096, 1))},
		"zeroes beyond the extent":    {says: whole(frame{kind: frameZero, stream: 1, extent: extent.Extent{Offset: 4096, Length: 8193}})},
		"no zeroes":                   {says: whole(frame{kind: frameZero, stream: 1, extent: extent.Extent{Offset: 4096}})},
		"an early end":                {says: slices.Concat(piece(1, 4096, 1), whole(frame{kind: frameEnd, stream: 1}))},
		"content for regions":         {says: piece(2, 4096, 1)},
		"a page for a read":           {says: whole(frame{kind: framePage, stream: 1}, region(export.Data, 8192)...)},
		"an end without a page":       {says: whole(frame{kind: frameEnd, stream: 2})},
		"an empty page":               {says: whole(frame{kind: framePage, stream: 2})},
		"more regions than asked for": {says: whole(frame{kind: framePage, stream: 2}, bytes.Repeat(region(export.Data, 1), firstPageRegions+1)...)},
		"an unknown kind of region":   {says: whole(frame{kind: framePage, stream: 2}, region(4, 8192)...)},
		"a region beyond the extent":  {says: whole(frame{kind: framePage, stream: 2}, region(export.Data, 8193)...)},
		"a region of nothing":         {says: whole(frame{kind: framePage, stream: 2}, region(export.Data, 0)...)},
		"a region that is negative":   {says: whole(frame{kind: framePage, stream: 2}, region(export.Data, -1)...)},
		"a message without an end":    {says: whole(frame{kind: frameEnd, stream: 1, class: 2}, make([]byte, maxMessageBytes+1)...)},
		"a piece that is cut short":   {says: piece(1, 4096, 1, 2, 3)[:26]},
		"the end of the connection":   {says: nil},
	} {
		offer := c.offer
		if offer == nil {
			offer = goodOffer()
		}
		session, read, regions := readScript(t, offer, c.says)
		cut := name == "a piece that is cut short" || name == "the end of the connection"
		if errors.Is(session, ErrProtocol) == cut {
			t.Errorf("%s: %v", name, session)
		}
		if c.offer != nil {
			continue
		}
		for what, err := range map[string]error{"read": read, "regions": regions} {
			if !errors.Is(err, errclass.Transient) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

// Content that there is no credit for is a breach, whatever its reader has taken meanwhile.
func TestBreach_contentWithoutCredit(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]frame{
		"data":   {kind: frameData, tail: 1, extent: extent.Extent{Offset: 4096 + 4096 + 1, Length: 1}},
		"zeroes": {kind: frameZero, extent: extent.Extent{Offset: 4096 + 4096 + 1, Length: 1}},
	} {
		st := &stream{asked: goodRead, at: somewhere.Offset, credit: 8192 + 4096}
		for _, f := range []frame{
			{kind: frameData, tail: 4096, extent: extent.Extent{Offset: 4096, Length: 4096}},
			{kind: frameData, tail: 1, extent: extent.Extent{Offset: 8192, Length: 1}},
		} {
			if wanted, err := st.expectPiece(f); err != nil || !wanted {
				t.Errorf("%v: %v", f.extent, err)
			}
		}
		st.credit -= 4096 - 1
		if _, err := st.expectPiece(more); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s without credit: %v", name, err)
		}
	}
}

// Data that is not what its checksum says is never passed on, and harms no other request.
func TestRead_checksumIsChecked(t *testing.T) {
	t.Parallel()
	b := piece(1, 4096, make([]byte, 8192)...)
	b[len(b)-1]++
	page := appendRegion(nil, export.Region{Extent: extent.Extent{Length: somewhere.Length}, Kind: export.Clean})
	session, read, regions := readScript(t, goodOffer(), slices.Concat(b, whole(frame{kind: framePage, stream: 2}, page...), whole(frame{kind: frameEnd, stream: 1})))
	if !errors.Is(read, errclass.Corrupt) || regions != nil || !errors.Is(session, io.ErrUnexpectedEOF) {
		t.Errorf("session %v, read %v, regions %v", session, read, regions)
	}
}

// Pieces have the checksums of their data, and a chunk that is not what its checksum says is noticed before its last piece.
func TestSplitChunk_keepsTheSum(t *testing.T) {
	t.Parallel()
	random := make([]byte, export.MaxChunkBytes)
	for i := range random {
		random[i] = byte(i * i >> 7)
	}
	rapid.Check(t, func(t *rapid.T) {
		data := bytes.Clone(random[:rapid.IntRange(1, len(random)).Draw(t, "bytes")])
		c := export.Chunk{Extent: extent.Extent{Offset: 77, Length: int64(len(data))}, Data: data, Checksum: export.Checksum(data)}
		damaged := len(data) > maxPieceBytes && rapid.Bool().Draw(t, "damaged")
		if damaged {
			data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		var joined []byte
		err := splitChunk(c, func(p export.Chunk) error {
			if p.Offset != 77+int64(len(joined)) || p.Length != int64(len(p.Data)) || len(p.Data) > maxPieceBytes || export.Checksum(p.Data) != p.Checksum {
				verdict.Fatalf(t, "piece %v after %d", p.Extent, len(joined))
			}
			joined = append(joined, p.Data...)
			return nil
		})
		switch {
		case damaged && (!errors.Is(err, errclass.Corrupt) || len(joined) == len(data)):
			t.Fatalf("damage: %v", err)
		case !damaged && (err != nil || !bytes.Equal(joined, data)):
			verdict.Fatalf(t, "%d bytes of %d: %v", len(joined), len(data), err)
		}
	})
}

// The codes of classes are part of the wire.
func TestEnd_codes(t *testing.T) {
	t.Parallel()
	codes := map[string]uint8{}
	for _, err := range append(allClasses(), context.Canceled, errors.New("other")) {
		codes[err.Error()], _ = endOf(err)
	}
	want := map[string]uint8{
		"outcome unknown": 1, "corrupt": 2, "access denied": 3, "conflict": 4, "invalid": 5, "not found": 6, "expired": 7, "no space left": 8, "no answer": 9,
		"context canceled": 10, "other": 255,
	}
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Error(diff)
	}
	for class := range 256 {
		err := endError(uint8(class), strings.Repeat("\x1b[31m\xff", 1000))
		if (err == nil) != (class == 0) {
			t.Errorf("class %d: %v", class, err)
		}
		if err != nil && (len(err.Error()) > maxMessageBytes+20 || !isPlainText(err.Error())) {
			t.Errorf("class %d: %q", class, err)
		}
	}
}

// The launcher gives nothing but the volumes that it offers, as it offered them, and says why not.
func TestLauncher_servesWhatItOffers(t *testing.T) {
	t.Parallel()
	disk, secret := exporttest.NewVolume("disk", 1<<20, true, 1), exporttest.NewVolume("secret", 1<<20, false, 2)
	changed := exporttest.NewVolume("changed", 1<<20, false, 3)
	infos := []export.Info{disk.Info(), changed.Info(), {Name: "lost", Bytes: 1 << 20}}
	changed.Description.PointInTime = "later"
	l := &launcher{cfg: Config{}.withDefaults(), volumes: exporttest.Volumes{"disk": disk, "secret": secret, "changed": changed}, infos: infos}
	near, far := net.Pipe()
	s := newSocket(near)
	s.enterSession()
	ended := make(chan error, 1)
	go func() { ended <- newServing(l, s, s).serveUntilEnd(testContext(t)) }()
	far.SetDeadline(time.Now().Add(testTimeout))
	replies := frameReader{from: far, launcher: true}
	next := func() frame {
		f, err := replies.readFrame()
		if err == nil {
			err = replies.readTail(make([]byte, f.tail))
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := next(); f.kind != frameOffer || f.count != 1024 {
		t.Errorf("%+v", f)
	}
	for i, c := range []struct {
		volume uint16
		extent extent.Extent
		class  uint8
	}{
		{0, extent.Extent{Offset: 1<<20 - 4096, Length: 4096}, endSuccess},
		{0, extent.Extent{Offset: 1<<20 - 4096, Length: 4097}, 5},
		{0, extent.Extent{Offset: 1 << 40, Length: 1}, 5},
		{1, extent.Extent{Length: 4096}, 7},
		{2, extent.Extent{Length: 4096}, 6},
		{3, extent.Extent{Length: 4096}, 6},
		{math.MaxUint16, extent.Extent{Length: 4096}, 6},
	} {
		for _, kind := range []frameKind{frameRead, frameRegions} {
			request := frame{kind: kind, stream: uint32(i + 1), volume: c.volume, count: minCreditBytes, extent: c.extent}
			if kind == frameRegions {
				request.count = 10
			}
			if _, err := far.Write(whole(request)); err != nil {
				t.Fatal(err)
			}
			reply := next()
			for reply.kind != frameEnd && reply.kind != framePage {
				if c.class != endSuccess && reply.kind != framePing {
					t.Errorf("volume %d, %v: a %s frame", c.volume, c.extent, frameShapes[reply.kind].name)
				}
				reply = next()
			}
			if reply.stream != request.stream || reply.class != c.class {
				t.Errorf("volume %d, %v: %+v", c.volume, c.extent, reply)
			}
		}
	}
	far.Close()
	<-ended
}

// A far end that asks for much, pings, and takes nothing does not hold the launcher's workers for ever.
func TestLauncher_givesUpWhoTakesNothing(t *testing.T) {
	t.Parallel()
	endless := newEndlessVolume("endless")
	l := &launcher{
		cfg:     Config{Keepalive: 500 * time.Millisecond}.withDefaults(), // three without a ping would be another end
		volumes: exporttest.Volumes{"endless": endless}, infos: []export.Info{endless.Info()},
	}
	near, far := net.Pipe()
	defer far.Close()
	s := newSocket(near)
	s.enterSession()
	ended := make(chan error, 1)
	go func() { ended <- newServing(l, s, s).serveUntilEnd(testContext(t)) }()
	offer := frameReader{from: far, launcher: true}
	if f, err := offer.readFrame(); err != nil || offer.readTail(make([]byte, f.tail)) != nil {
		t.Fatal(err)
	}
	request := frame{kind: frameRead, stream: 1, count: maxCreditBytes, extent: extent.Extent{Length: 1 << 30}}
	if _, err := far.Write(whole(request)); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case err := <-ended:
			if !errors.Is(err, errStuck) {
				t.Error(err)
			}
			return
		default:
			far.SetWriteDeadline(time.Now().Add(testTimeout))
			far.Write(whole(frame{kind: framePing}))
		}
	}
}
