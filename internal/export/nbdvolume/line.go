package nbdvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/guard"
	"github.com/varvebackup/varve/internal/nbd"
)

const (
	// LostAfter is how long an export may be out of reach before Lost says so.
	LostAfter = time.Minute
	// redialTimeout bounds one attempt to connect again, and redialPause is the pause after one that failed.
	redialTimeout = 10 * time.Second
	redialPause   = 500 * time.Millisecond
	// redialPatience is how long a call waits for connections before it fails with Transient.
	redialPatience = 5 * time.Second
)

// line is the client of an export, and the next one when that has died.
type line struct {
	target  nbd.Target
	options nbd.Options
	clock   clock.PassiveClock
	// bytes is the size of the export. One of another size is another disk.
	bytes int64

	// life ends with close.
	life    context.Context //nolint:containedctx // the volume's life, not a call's
	endLife context.CancelFunc
	ended   chan struct{}

	mu      sync.Mutex
	current *nbd.Client
	// changed is closed when there is another current client.
	changed chan struct{}
	// broken is when the current client died, and why it could not be replaced; zero while it lives.
	broken time.Time
	why    error
	// panicked is the first panic.
	panicked error
}

func openLine(ctx context.Context, t nbd.Target, o nbd.Options, c clock.PassiveClock) (*line, error) {
	l := &line{target: t, options: o, clock: c, ended: make(chan struct{}), changed: make(chan struct{})}
	client, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.current, l.bytes = client, client.Info().Bytes
	l.life, l.endLife = context.WithCancel(context.Background())
	go func() {
		defer close(l.ended)
		_ = l.guard(l.keepConnected) // lost tells of a panic
	}()
	return l, nil
}

// dial returns a client of an export that can tell its status.
func (l *line) dial(ctx context.Context) (*nbd.Client, error) {
	client, err := nbd.Dial(ctx, l.target, l.options)
	if err != nil {
		return nil, err
	}
	info := client.Info()
	for _, name := range l.options.Contexts {
		if !slices.Contains(info.Contexts, name) {
			return nil, errors.Join(errclass.Errorf(errclass.Invalid, "the export has no context %s", name), client.Close())
		}
	}
	return client, nil
}

// keepConnected replaces clients that die until the volume is closed.
func (l *line) keepConnected() error {
	for {
		dead, _ := l.now()
		select {
		case <-dead.Done():
		case <-l.life.Done():
			return nil
		}
		l.note(nil, dead.Err())
		for {
			client, err := l.redial()
			if l.note(client, err); err == nil {
				break
			}
			pause := time.NewTimer(redialPause)
			select {
			case <-pause.C:
			case <-l.life.Done():
				pause.Stop()
				return nil
			}
		}
		_ = dead.Close() // it is dead
	}
}

func (l *line) redial() (*nbd.Client, error) {
	ctx, cancel := context.WithTimeout(l.life, redialTimeout)
	defer cancel()
	client, err := l.dial(ctx)
	if err == nil && client.Info().Bytes != l.bytes {
		err = errors.Join(errclass.Errorf(errclass.Expired, "the export has %d bytes instead of %d", client.Info().Bytes, l.bytes), client.Close())
	}
	if err != nil {
		return nil, err
	}
	return client, nil
}

// note records a client in the place of one that has died, or why there is none.
func (l *line) note(client *nbd.Client, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if client == nil {
		l.why = err
		if l.broken.IsZero() {
			l.broken = l.clock.Now()
		}
		return
	}
	l.current, l.broken, l.why = client, time.Time{}, nil
	close(l.changed)
	l.changed = make(chan struct{})
}

// now returns the current client, and a channel that is closed when there is another one.
func (l *line) now() (*nbd.Client, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed
}

// client returns one that lives. If there is none for a while, the error is Transient.
func (l *line) client(ctx context.Context) (*nbd.Client, error) {
	patience := time.NewTimer(redialPatience)
	defer patience.Stop()
	for {
		client, changed := l.now()
		if client.Err() == nil {
			return client, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.life.Done():
			return nil, nbd.ErrClosed
		case <-patience.C:
			return nil, errclass.Errorf(errclass.Transient, "the export cannot be reached: %w", client.Err())
		}
	}
}

func (l *line) lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.panicked != nil {
		return l.panicked
	}
	if l.broken.IsZero() || l.clock.Since(l.broken) < LostAfter {
		return nil
	}
	return fmt.Errorf("the export cannot be reached: %w", l.why)
}

// guard turns a panic of f into an error, and has lost tell of it.
func (l *line) guard(f func() error) error {
	err := guard.Call(f)
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.panicked = cmp.Or(l.panicked, error(panicked))
	}
	return err
}

func (l *line) close() error {
	l.endLife()
	<-l.ended
	client, _ := l.now()
	return client.Close()
}

// transientIfDead makes an error Transient if it is the end of the connections, and the caller is not why. It hides the cause: the
// end of another call may have ended them, and a context's error would be taken for the caller's.
func transientIfDead(ctx context.Context, client *nbd.Client, err error) error {
	if dead := client.Err(); ctx.Err() != nil || dead == nil || errors.Is(dead, nbd.ErrClosed) {
		return err
	}
	return errclass.Errorf(errclass.Transient, "%v", err)
}
