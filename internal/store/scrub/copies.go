package scrub

import (
	"context"
	"maps"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// check is a copy that is read at once, because somebody has asked for it.
type check struct {
	image   disk.UID
	request string
	piece   int64 // the next one
}

// RequestCheck has a copy read before all others, unless that was done for the same request. A copy is also read once
// more if the store is restarted meanwhile. It does nothing for a disk that nobody has looked at yet: ask again.
func (s *Scrubber) RequestCheck(uuid, image disk.UID, request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workers[uuid]
	if w == nil || w.requests[image] == request {
		return
	}
	w.requests[image] = request
	signal(w.wake)
}

func (w *worker) isCheckRequested(o disk.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	request := w.requests[o.UID]
	return request != "" && request != w.state.Copies[o.UID].Checked
}

// continueCheck reads the next piece of a copy that somebody has asked for.
func (w *worker) continueCheck(ctx context.Context, d diskset.Disk, o disk.Object) (read int64, err error) {
	w.mu.Lock()
	request := w.requests[o.UID]
	w.mu.Unlock()
	if w.check.image != o.UID || w.check.request != request {
		w.check = check{image: o.UID, request: request}
	}
	read, err = w.checkPiece(ctx, d, o, w.check.piece)
	if err != nil {
		return read, err
	}
	if w.check.piece++; w.check.piece < int64(disk.CountPieces(o.Bytes)) {
		return read, nil
	}
	w.check = check{}
	w.updateState(func(st *state) {
		st.setNotes(o.UID, copyNotes{Read: w.Clock.Now(), Checked: request})
	})
	w.saveState(d)
	return read, nil
}

// noteCopies notes copies that are new on the disk, and forgets those that are not there any more.
func (w *worker) noteCopies(objects []disk.Object) {
	known := w.currentState().Copies
	next := map[disk.UID]copyNotes{}
	for _, o := range objects {
		if o.Kind != disk.KindImage {
			continue
		}
		notes, ok := known[o.UID]
		if !ok {
			notes.Read = w.Clock.Now() // sealing it has read it
		}
		next[o.UID] = notes
	}
	if maps.Equal(known, next) {
		return
	}
	isGone := func(image disk.UID) bool {
		_, there := next[image]
		return !there
	}
	w.updateState(func(st *state) {
		st.Copies = next
		maps.DeleteFunc(w.requests, func(image disk.UID, _ string) bool { return isGone(image) })
		maps.DeleteFunc(w.bad, func(image disk.UID, _ map[int64]bool) bool { return isGone(image) })
	})
	maps.DeleteFunc(w.failures, func(image disk.UID, _ int) bool { return isGone(image) })
}

// countBad counts a wrong piece of a copy, once until the copy is repaired. A repair that was given up may still call it.
func (w *worker) countBad(image disk.UID, piece int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bad[image] == nil {
		w.bad[image] = map[int64]bool{}
	}
	if w.bad[image][piece] {
		return
	}
	w.bad[image][piece] = true
	w.badPieces++
}

// countRepaired counts the pieces that were replaced in a copy, which has no wrong ones now.
func (w *worker) countRepaired(image disk.UID, pieces int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bad, image)
	w.repairedPieces += int64(pieces)
}
