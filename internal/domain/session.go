//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/guard"
)

// Session is a connection to a libvirtd that runs one domain.
//
// A call whose context ends returns at once, but libvirt may still finish the operation. The caller must check (Info,
// BackupJob) before it goes on. All calls are idempotent unless they say otherwise.
type Session struct {
	conn   *libvirt.Connect
	events *queue
	ids    []int
	agent  agent
}

// eventLoop starts libvirt's event loop. A process has one, and it never ends.
var eventLoop = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	go runEventLoop()
	return nil
})

// runEventLoop dispatches libvirt's events for the life of the process.
func runEventLoop() {
	for {
		// It fails only if no loop is registered, or if poll fails, in which case the next round tries again.
		_ = libvirt.EventRunDefaultImpl()
	}
}

// Connect opens a session with the libvirtd at uri, such as layout.LibvirtURI. The session's domain is the one that
// Start starts, or the only one that this libvirtd knows.
func Connect(uri string) (*Session, error) {
	if err := eventLoop(); err != nil {
		return nil, fmt.Errorf("start libvirt's event loop: %w", err)
	}
	conn, err := libvirt.NewConnect(uri)
	if err != nil {
		return nil, fmt.Errorf("connect to libvirt at %s: %w", uri, translateError(err))
	}
	s := &Session{conn: conn}
	s.events = newQueue(queueLimit, s.beforeEvent)
	if err := s.subscribeEvents(); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to libvirt's events: %w", err), s.Close())
	}
	return s, nil
}

// Close ends the session and closes the channel of Events. The domain keeps running.
func (s *Session) Close() error {
	// These fail on a dead connection, which has nothing left to deregister.
	for _, id := range s.ids {
		_ = s.conn.DomainEventDeregister(id)
	}
	_ = s.conn.UnregisterCloseCallback()
	s.events.close()
	if _, err := s.conn.Close(); err != nil {
		return fmt.Errorf("close the connection to libvirt: %w", translateError(err))
	}
	return nil
}

// callWithin runs f, which cannot be interrupted, and returns f's results, or the context's error if the context ends first.
func callWithin[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = guard.Call(func() (err error) { // a mistake here must not end the guest
			r.value, err = f()
			return err
		})
		done <- r
	}()
	select {
	case r := <-done:
		return r.value, translateError(r.err)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// withDomain runs f on the domain. It translates f's error.
func (s *Session) withDomain(ctx context.Context, what string, f func(d *libvirt.Domain) error) error {
	_, err := queryDomain(ctx, s, what, func(d *libvirt.Domain) (struct{}, error) { return struct{}{}, f(d) })
	return err
}

// queryDomain is with for an f that has a result.
func queryDomain[T any](ctx context.Context, s *Session, what string, f func(d *libvirt.Domain) (T, error)) (T, error) {
	value, err := callWithin(ctx, func() (T, error) {
		var none T
		d, err := s.onlyDomain()
		if err != nil {
			return none, err
		}
		value, err := f(d)
		return value, errors.Join(err, d.Free())
	})
	if err != nil {
		return value, fmt.Errorf("%s: %w", what, err)
	}
	return value, nil
}

// onlyDomain returns the only domain of this libvirtd.
func (s *Session) onlyDomain() (*libvirt.Domain, error) {
	all, err := s.conn.ListAllDomains(0)
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		return &all[0], nil
	}
	for i := range all {
		err = errors.Join(err, all[i].Free())
	}
	if len(all) == 0 {
		return nil, errors.Join(fmt.Errorf("%w: libvirt has no domain", errclass.NotFound), err)
	}
	return nil, errors.Join(fmt.Errorf("%w: libvirt has %d domains, not 1", errclass.Invalid, len(all)), err)
}

// disksOf returns the domain's live document and the disks that it describes.
func disksOf(d *libvirt.Domain) (*libvirtxml.Domain, diskMap, error) {
	doc, err := d.GetXMLDesc(0)
	if err != nil {
		return nil, nil, err
	}
	parsed := &libvirtxml.Domain{}
	if err := parsed.Unmarshal(doc); err != nil {
		return nil, nil, fmt.Errorf("libvirt's document: %w", err)
	}
	return parsed, mapDisks(parsed), nil
}
