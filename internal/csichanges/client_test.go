package csichanges

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/snapshotmetadata"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	fixed    = api.BlockMetadataType_FIXED_LENGTH
	variable = api.BlockMetadataType_VARIABLE_LENGTH
	kib      = 1 << 10
)

var at = snapshotmetadata.Range

type (
	sender  = snapshotmetadata.Sender
	request = snapshotmetadata.Request
)

// start serves the stub until the test ends.
func start(t *testing.T, stub *snapshotmetadata.StubSnapshotMetadata) *Service {
	t.Helper()
	address, ca := stub.Start(t)
	return &Service{Address: address, CA: ca, Audience: "stub"}
}

// newClient asks the stub, at most three times for one thing.
func newClient(t *testing.T, stub *snapshotmetadata.StubSnapshotMetadata) *Client {
	t.Helper()
	token := func(_ context.Context, audience string) (string, error) { return "token-for-" + audience, nil }
	c, err := NewClient(start(t, stub), token, Limits{Idle: time.Minute, Attempts: 3, Pause: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestClient_asksWhatItIsAsked(t *testing.T) {
	t.Parallel()
	stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(r request, _ int, send sender) error {
		if r.Base == "" {
			return errors.Join(send(variable, 100*kib), send(variable, 100*kib, at(0, 3*kib), at(3*kib, kib)), send(variable, 100*kib, at(99*kib, kib)))
		}
		return send(fixed, 100*kib, at(16*kib, 16*kib), at(96*kib, 16*kib)) // the last block is cut by the volume's end
	}}
	c := newClient(t, stub)
	s := Snapshot{Namespace: "app", Name: "monday", Bytes: 100 * kib}
	allocated, err := c.Allocated(t.Context(), s)
	if want := extent.NewSet(extent.Extent{Length: 4 * kib}, extent.Extent{Offset: 99 * kib, Length: kib}); err != nil || !slices.Equal(slices.Collect(allocated.All()), slices.Collect(want.All())) {
		verdict.JudgeErrorf(t, err == nil, "allocated: %v, %v", slices.Collect(allocated.All()), err)
	}
	changed, err := c.Changed(t.Context(), "handle-of-sunday", s)
	if want := extent.NewSet(extent.Extent{Offset: 16 * kib, Length: 16 * kib}, extent.Extent{Offset: 96 * kib, Length: 4 * kib}); err != nil || !slices.Equal(slices.Collect(changed.All()), slices.Collect(want.All())) {
		verdict.JudgeErrorf(t, err == nil, "changed: %v, %v", slices.Collect(changed.All()), err)
	}
	want := []request{
		{Token: "token-for-stub", Namespace: "app", Snapshot: "monday"},
		{Token: "token-for-stub", Namespace: "app", Snapshot: "monday", Base: "handle-of-sunday"},
	}
	if diff := cmp.Diff(want, stub.Seen()); diff != "" {
		t.Error(diff)
	}
}

// Nothing changed is an answer, if the service says of which volume.
func TestClient_believesThatNothingChanged(t *testing.T) {
	t.Parallel()
	stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(_ request, _ int, send sender) error { return send(variable, kib) }}
	if set, err := newClient(t, stub).Changed(t.Context(), "base", Snapshot{Bytes: kib}); err != nil || !set.Empty() {
		t.Errorf("%v, %v", set, err)
	}
}

// However often streams break, as long as each brings something, the answer is that of one stream.
func TestClient_continuesBrokenStreams(t *testing.T) {
	t.Parallel()
	for _, kind := range []api.BlockMetadataType{fixed, variable} {
		random := rand.New(rand.NewPCG(7, uint64(kind))) //nolint:gosec // the same each time
		const blocks = 400
		var ranges []*api.BlockMetadata
		var want []extent.Extent
		for i := range int64(blocks) {
			if random.IntN(3) == 0 {
				continue
			}
			length := int64(4 * kib)
			if kind == variable {
				length = 1 + random.Int64N(4*kib)
			}
			ranges = append(ranges, at(i*4*kib, length))
			want = append(want, extent.Extent{Offset: i * 4 * kib, Length: length})
		}
		stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(r request, attempt int, send sender) error {
			// As the protocol has it: from the range that the offset is in or behind.
			first := slices.IndexFunc(ranges, func(b *api.BlockMetadata) bool { return b.GetByteOffset()+b.GetSizeBytes() > r.From })
			if first < 0 {
				return send(kind, blocks*4*kib)
			}
			for n, b := range ranges[first:] {
				if n == 1+attempt%7 {
					return status.Error(codes.Unavailable, "the driver restarts")
				}
				if err := send(kind, blocks*4*kib, b); err != nil {
					return err
				}
			}
			return nil
		}}
		set, err := newClient(t, stub).Allocated(t.Context(), Snapshot{Bytes: blocks * 4 * kib})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(slices.Collect(extent.NewSet(want...).All()), slices.Collect(set.All())); diff != "" {
			verdict.Errorf(t, "%s: %s", kind, diff)
		}
		if len(stub.Seen()) < 20 {
			t.Errorf("%d streams", len(stub.Seen()))
		}
	}
}

// A stream that starts in the middle of a range may begin with it, or with the rest of it.
func TestClient_continuesWithinARange(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]*api.BlockMetadata{"the whole range": at(0, 8*kib), "the rest of it": at(4*kib, 4*kib)} {
		stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(_ request, attempt int, send sender) error {
			if attempt == 1 {
				return errors.Join(send(variable, 100*kib, at(0, 4*kib)), status.Error(codes.Unavailable, "x"))
			}
			return send(variable, 100*kib, second, at(50*kib, kib))
		}}
		set, err := newClient(t, stub).Allocated(t.Context(), Snapshot{Bytes: 100 * kib})
		if want := extent.NewSet(extent.Extent{Length: 8 * kib}, extent.Extent{Offset: 50 * kib, Length: kib}); err != nil || !slices.Equal(slices.Collect(set.All()), slices.Collect(want.All())) {
			verdict.JudgeErrorf(t, err == nil, "%s: %v, %v", name, slices.Collect(set.All()), err)
		}
	}
}

// Whatever breaks a rule could make a backup leave out what has changed. Nothing of such an answer is used, and nothing is asked again.
func TestClient_refusesAnswersThatBreakARule(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(send sender) error{
		"no message":               func(sender) error { return nil },
		"no type":                  func(send sender) error { return send(api.BlockMetadataType_UNKNOWN, 100*kib, at(0, kib)) },
		"a type that nobody knows": func(send sender) error { return send(7, 100*kib, at(0, kib)) },
		"another type":             func(send sender) error { return errors.Join(send(fixed, 100*kib, at(0, kib)), send(variable, 100*kib)) },
		"another size":             func(send sender) error { return send(variable, 101*kib) },
		"another size later":       func(send sender) error { return errors.Join(send(variable, 100*kib), send(variable, 0)) },
		"a negative offset":        func(send sender) error { return send(variable, 100*kib, at(-1, kib)) },
		"a negative length":        func(send sender) error { return send(variable, 100*kib, at(kib, -kib)) },
		"no length":                func(send sender) error { return send(variable, 100*kib, at(kib, 0)) },
		"an end that overflows":    func(send sender) error { return send(variable, 100*kib, at(kib, 1<<63-1)) },
		"behind the end":           func(send sender) error { return send(fixed, 100*kib, at(100*kib, kib)) },
		"over the end":             func(send sender) error { return send(variable, 100*kib, at(99*kib, 2*kib)) },
		"out of order":             func(send sender) error { return send(variable, 100*kib, at(8*kib, kib), at(0, kib)) },
		"twice":                    func(send sender) error { return send(variable, 100*kib, at(8*kib, kib), at(8*kib, kib)) },
		"overlapping":              func(send sender) error { return send(variable, 100*kib, at(8*kib, 4*kib), at(11*kib, 4*kib)) },
		"overlapping in two messages": func(send sender) error {
			return errors.Join(send(variable, 100*kib, at(0, 4*kib)), send(variable, 100*kib, at(0, 8*kib)))
		},
		"fixed, and of two lengths": func(send sender) error { return send(fixed, 100*kib, at(0, 4*kib), at(4*kib, 8*kib)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(_ request, _ int, send sender) error { return answer(send) }}
			set, err := newClient(t, stub).Changed(t.Context(), "base", Snapshot{Namespace: "app", Name: "monday", Bytes: 100 * kib})
			if !errors.Is(err, errclass.Corrupt) || !set.Empty() || !strings.Contains(err.Error(), "app/monday") {
				t.Errorf("%v, %v", set, err)
			}
			if n := len(stub.Seen()); n != 1 {
				t.Errorf("it asked %d times", n)
			}
		})
	}
}

func TestClient_givesUpWithAReason(t *testing.T) {
	t.Parallel()
	hang := func(r request) error {
		<-r.Done
		return status.Error(codes.Canceled, "x")
	}
	for name, c := range map[string]struct {
		answer func(r request, send sender) error
		class  error
		times  int
	}{
		"silence":                   {func(r request, _ sender) error { return hang(r) }, errclass.Transient, 3},
		"silence after a beginning": {func(r request, send sender) error { return errors.Join(send(variable, 100*kib), hang(r)) }, errclass.Transient, 3},
		"messages without an end": {func(r request, send sender) error {
			for {
				if err := send(variable, 100*kib); err != nil {
					return err
				}
			}
		}, errclass.Transient, 3},
		"a service that is busy": {func(request, sender) error { return status.Error(codes.ResourceExhausted, "busy") }, errclass.Transient, 3},
		"no such snapshot":       {func(request, sender) error { return status.Error(codes.NotFound, "x") }, errclass.NotFound, 1},
		"no such method":         {func(request, sender) error { return status.Error(codes.Unimplemented, "x") }, errclass.Invalid, 1},
		"a base that is too old": {func(request, sender) error { return status.Error(codes.FailedPrecondition, "x") }, errclass.Invalid, 1},
		"a token that is sent back": {func(r request, _ sender) error {
			return status.Error(codes.Unauthenticated, "nobody knows "+r.Token)
		}, errclass.Denied, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(r request, _ int, send sender) error { return c.answer(r, send) }}
			client := newClient(t, stub)
			if errors.Is(c.class, errclass.Transient) {
				client.limits.Idle = time.Second
			}
			_, err := client.Allocated(t.Context(), Snapshot{Bytes: 100 * kib})
			if !errors.Is(err, c.class) || len(stub.Seen()) != c.times {
				t.Errorf("%v, after %d streams", err, len(stub.Seen()))
			}
			if err != nil && strings.Contains(err.Error(), "token-for") {
				t.Errorf("the token leaves in %v", err)
			}
		})
	}
}

// A driver that always has a little more to say is no faster than the disk itself.
func TestClient_givesUpAnAnswerWithoutAnEnd(t *testing.T) {
	t.Parallel()
	c := newClient(t, &snapshotmetadata.StubSnapshotMetadata{Answer: func(r request, _ int, send sender) error {
		for offset := r.From; ; offset += kib {
			select {
			case <-r.Done:
				return nil
			case <-time.After(time.Millisecond):
			}
			if err := send(variable, 1<<50, at(offset, kib)); err != nil {
				return err
			}
		}
	}})
	c.limits.Total = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.Changed(ctx, "base", Snapshot{Namespace: "varve", Name: "snap", Bytes: 1 << 50})
	if !errors.Is(err, errclass.Expired) || !strings.Contains(err.Error(), "not complete after 100ms") {
		t.Errorf("%v", err)
	}
}

// The end of a stream is all that says that an answer is whole. A driver that ends one in good order because nobody waits any more, or because
// it was told when nobody would, has left ranges out, and what changed there would be missing from a restore point.
func TestClient_takesNoEndThatItCausedForAWholeAnswer(t *testing.T) {
	t.Parallel()
	c := newClient(t, &snapshotmetadata.StubSnapshotMetadata{})
	c.limits.Total = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	messages := 0
	set, err := c.collect(ctx, kib, func(ctx context.Context, _ string, _ int64) (receiver, error) {
		if deadline, told := ctx.Deadline(); told {
			t.Errorf("the driver is told that nobody waits after %s", deadline)
		}
		return func() (message, error) {
			if messages++; messages > 1 {
				<-ctx.Done()
				return nil, io.EOF
			}
			return &api.GetMetadataDeltaResponse{BlockMetadataType: variable, VolumeCapacityBytes: kib, BlockMetadata: []*api.BlockMetadata{at(0, 512)}}, nil
		}, nil
	})
	if !errors.Is(err, errclass.Expired) {
		t.Errorf("%v, %v", set, err)
	}
}

func TestClient_canBeCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the upload was canceled")
	stub := &snapshotmetadata.StubSnapshotMetadata{Answer: func(r request, _ int, _ sender) error {
		cancel(why)
		<-r.Done
		return nil
	}}
	if _, err := newClient(t, stub).Allocated(ctx, Snapshot{Bytes: kib}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// A service that nobody reaches at first is found when it is there, however often its connections broke before.
func TestClient_connectsAgain(t *testing.T) {
	t.Parallel()
	service := start(t, &snapshotmetadata.StubSnapshotMetadata{Answer: func(_ request, _ int, send sender) error { return send(variable, kib, at(0, 512)) }})
	to := service.Address
	service.Address = refuseFirst(t, 2, to)
	token := func(context.Context, string) (string, error) { return "token", nil }
	c, err := NewClient(service, token, Limits{Attempts: 1 << 20, Pause: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if set, err := c.Allocated(t.Context(), Snapshot{Bytes: kib}); err != nil || set.Bytes() != 512 {
		t.Errorf("%v, %v", set, err)
	}
}

// refuseFirst listens, closes so many connections at once, and leads the next ones to an address. It returns where.
func refuseFirst(t *testing.T, refused int, to string) string {
	t.Helper()
	var listening net.ListenConfig
	l, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); group.Wait() })
	group.Go(func() {
		for n := 0; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if n < refused {
				_ = in.Close()
				continue
			}
			out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				group.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = errors.Join(pair[0].Close(), pair[1].Close())
				})
			}
		}
	})
	return l.Addr().String()
}

// Whoever has the service's address, but no certificate of its authority, gets neither a token nor a question.
func TestClient_asksNobodyElse(t *testing.T) {
	t.Parallel()
	stub, other := &snapshotmetadata.StubSnapshotMetadata{Answer: func(request, int, sender) error { return nil }}, &snapshotmetadata.StubSnapshotMetadata{}
	service := start(t, stub)
	service.CA = start(t, other).CA
	c, err := NewClient(service, func(context.Context, string) (string, error) { return "secret", nil }, Limits{Attempts: 2, Pause: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Allocated(t.Context(), Snapshot{Bytes: kib}); !errors.Is(err, errclass.Transient) || !strings.Contains(err.Error(), "certificate") || len(stub.Seen()) > 0 {
		t.Errorf("%v, %v", err, stub.Seen())
	}
}
