package progress

import (
	"errors"
	"io"
	"time"
)

// several shows what goes on at the same time: each name has a bar, or lines that count for themselves.
type several struct {
	newRenderer func() (Renderer, error)
	byName      map[string]Renderer
	order       []Renderer
	// end is called when all have ended.
	end func()
	err error
}

// NewSeveral returns a renderer like that of New for reports with several names that come in any order.
func NewSeveral(mode Mode, out io.Writer, terminal bool, now func() time.Time) (Renderer, error) {
	s := &several{byName: map[string]Renderer{}, end: func() {}}
	if mode = mode.resolve(terminal); mode == Bar {
		container := newContainer(out, terminal)
		s.end = container.Wait
		s.newRenderer = func() (Renderer, error) {
			b := newBar(container, now)
			b.shared = true
			return b, nil
		}
		return s, nil
	}
	s.newRenderer = func() (Renderer, error) { return New(mode, out, terminal, now) }
	_, err := s.newRenderer() // Is the mode known?
	return s, err
}

func (s *several) Show(r Report) {
	renderer := s.byName[r.Name]
	if renderer == nil {
		var err error
		if renderer, err = s.newRenderer(); err != nil {
			s.err = errors.Join(s.err, err)
			return
		}
		s.byName[r.Name], s.order = renderer, append(s.order, renderer)
	}
	renderer.Show(r)
}

func (s *several) Close() error {
	for _, r := range s.order {
		s.err = errors.Join(s.err, r.Close())
	}
	s.end()
	return s.err
}
