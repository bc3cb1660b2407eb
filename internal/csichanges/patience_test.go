package csichanges

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// uploadDeadline is the shortest time after which somebody gives an upload up: a DataUpload's operationTimeout.
const uploadDeadline = 10 * time.Minute

// script plays a service in a bubble: next is called for each message of each stream, with the stream's number, from 1.
func script(ctx context.Context, bytes int64, limits Limits, next func(ctx context.Context, stream int, from int64) (message, error)) (set extent.Set, streams int, err error) {
	c := &Client{token: func(context.Context, string) (string, error) { return "token", nil }, limits: limits.orDefaults()}
	set, err = c.collect(ctx, bytes, func(ctx context.Context, _ string, from int64) (receiver, error) {
		streams++
		return func() (message, error) { return next(ctx, streams, from) }, nil
	})
	return set, streams, err
}

func says(ranges ...*api.BlockMetadata) *api.GetMetadataDeltaResponse {
	return &api.GetMetadataDeltaResponse{BlockMetadataType: variable, VolumeCapacityBytes: 1 << 40, BlockMetadata: ranges}
}

// silence says nothing until nobody listens any more.
func silence(ctx context.Context) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// A service that fails for good costs an upload minutes, however it fails, and nothing of what it has said before is used.
func TestPatience_endsLongBeforeAnUploadDoes(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(ctx context.Context, stream int, from int64) (message, error){
		"unavailable": func(context.Context, int, int64) (message, error) { return nil, status.Error(codes.Unavailable, "no") },
		"internal":    func(context.Context, int, int64) (message, error) { return nil, status.Error(codes.Internal, "no") },
		"no gRPC":     func(context.Context, int, int64) (message, error) { return nil, errors.New("no") },
		"silence":     func(ctx context.Context, _ int, _ int64) (message, error) { return nil, silence(ctx) },
		"a failure that takes its time": func(ctx context.Context, _ int, _ int64) (message, error) {
			select {
			case <-ctx.Done():
			case <-time.After(119 * time.Second):
			}
			return nil, status.Error(codes.Unavailable, "no")
		},
		"silence after a beginning": func() func(ctx context.Context, stream int, from int64) (message, error) {
			begun := false
			return func(ctx context.Context, _ int, from int64) (message, error) {
				if !begun {
					begun = true
					return says(at(from, kib)), nil
				}
				return nil, silence(ctx)
			}
		}(),
		"messages that bring nothing": func(ctx context.Context, _ int, _ int64) (message, error) {
			select {
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			case <-time.After(time.Second):
				return says(), nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				set, streams, err := script(t.Context(), 1<<40, Limits{}, next)
				if took := time.Since(begin); took > uploadDeadline/3 || took < time.Minute {
					t.Errorf("it took %s", took)
				}
				if !errors.Is(err, errclass.Transient) || !set.Empty() {
					t.Errorf("%v, %v", set, err)
				}
				if streams < 2 {
					t.Errorf("%d streams", streams)
				}
			})
		})
	}
}

// A service whose pod is replaced is back in a minute, and then the upload is incremental.
func TestPatience_outlastsARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back, sent := time.Now().Add(time.Minute), false
		set, _, err := script(t.Context(), 1<<40, Limits{}, func(context.Context, int, int64) (message, error) {
			switch {
			case time.Now().Before(back):
				return nil, status.Error(codes.Unavailable, "it starts")
			case !sent:
				sent = true
				return says(at(0, kib)), nil
			}
			return nil, io.EOF
		})
		if err != nil || set.Bytes() != kib {
			t.Errorf("%v, %v", set, err)
		}
	})
}

// Each stream brings a range, and breaks. That goes on for longer than anybody waits for nothing.
func TestPatience_isNotLostWithWhoBringsSomething(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, sent := time.Now(), 0
		set, _, err := script(t.Context(), 1<<40, Limits{}, func(_ context.Context, stream int, from int64) (message, error) {
			switch {
			case stream > 20:
				return nil, io.EOF
			case sent == stream:
				return nil, status.Error(codes.Unavailable, "it breaks")
			}
			sent = stream
			time.Sleep(time.Minute)
			return says(at(from, kib)), nil
		})
		if took := time.Since(begin); err != nil || set.Bytes() != 20*kib || took < 20*time.Minute {
			t.Errorf("%v, %v, after %s", set, err, took)
		}
	})
}

// Who cancels need not wait for a pause to end, and is what the error names.
func TestPatience_isOverWithACancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the upload was canceled")
		ctx, cancel := context.WithCancelCause(t.Context())
		begin := time.Now()
		time.AfterFunc(20*time.Second, func() { cancel(why) })
		_, streams, err := script(ctx, 1<<40, Limits{}, func(context.Context, int, int64) (message, error) {
			return nil, status.Error(codes.Unavailable, "no")
		})
		if took := time.Since(begin); !errors.Is(err, why) || took != 20*time.Second || streams < 2 {
			t.Errorf("%v, after %s and %d streams", err, took, streams)
		}
	})
}

// What a user reads says what the service did, also if the time ends it.
func TestPatience_endsWithTheLastWords(t *testing.T) {
	t.Parallel()
	for last, next := range map[string]func(context.Context, int, int64) (message, error){
		"Unavailable: the driver is upgraded": func(context.Context, int, int64) (message, error) {
			return nil, status.Error(codes.Unavailable, "the driver is upgraded")
		},
		"a stream has brought nothing new for 2m0s": func(ctx context.Context, _ int, _ int64) (message, error) { return nil, silence(ctx) },
	} {
		synctest.Test(t, func(t *testing.T) {
			_, _, err := script(t.Context(), 1<<40, Limits{Attempts: 1000}, next)
			if err == nil || !strings.Contains(err.Error(), "nothing new for 3m0s") || !strings.Contains(err.Error(), last) {
				t.Errorf("%v", err)
			}
		})
	}
}
