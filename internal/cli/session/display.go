package session

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/progress"
)

// Display is how a command shows its progress.
type Display struct{ mode string }

// AddFlag adds --progress. when says when progress is shown.
func (d *Display) AddFlag(c *cobra.Command, when string) {
	cmdline.AddChoice(c, &d.mode, "progress", string(progress.Auto), "how to show progress "+when+": auto (bar on a terminal, else plain), bar, plain, json or none", progress.Modes()...)
}

// ShowWhile shows what f reports while it runs. f may report from several goroutines.
func (d *Display) ShowWhile(s *Session, f func(show func(progress.Report)) error) error {
	return d.showIn(s, progress.New, f)
}

// ShowEach is ShowWhile for what goes on at the same time: each name of a report is shown by itself.
func (d *Display) ShowEach(s *Session, f func(show func(progress.Report)) error) error {
	return d.showIn(s, progress.NewSeveral, f)
}

type newRenderer = func(mode progress.Mode, out io.Writer, terminal bool, now func() time.Time) (progress.Renderer, error)

func (d *Display) showIn(s *Session, open newRenderer, f func(show func(progress.Report)) error) error {
	renderer, err := open(progress.Mode(d.mode), s.Streams.Err, s.Streams.Terminal, s.Now)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	err = f(func(r progress.Report) {
		mu.Lock()
		defer mu.Unlock()
		renderer.Show(r)
	})
	// The reader of the progress may be gone. That does not make what was done a failure.
	if closed := renderer.Close(); closed != nil && !errors.Is(closed, syscall.EPIPE) {
		err = errors.Join(err, fmt.Errorf("show progress: %w", closed))
	}
	return err
}
