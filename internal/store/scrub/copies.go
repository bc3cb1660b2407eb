package scrub

import (
	"maps"

	"github.com/varvebackup/varve/internal/store/disk"
)

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
	w.updateState(func(st *state) { st.Copies = next })
	for image := range w.bad {
		if _, ok := next[image]; !ok {
			delete(w.bad, image)
		}
	}
}

// countBad counts a wrong piece of a copy, once until the copy is repaired.
func (w *worker) countBad(image disk.UID, piece int64) {
	if w.bad[image] == nil {
		w.bad[image] = map[int64]bool{}
	}
	if w.bad[image][piece] {
		return
	}
	w.bad[image][piece] = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.badPieces++
}

// countRepaired counts the pieces that were replaced in a copy, which has no wrong ones now.
func (w *worker) countRepaired(image disk.UID, pieces int) {
	delete(w.bad, image)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.repairedPieces += int64(pieces)
}
