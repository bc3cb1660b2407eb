package resource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
)

// Waiting is how a command waits for the result of its request.
type Waiting struct {
	session.Display

	// Wait says that the user wants to wait.
	Wait    bool
	timeout time.Duration
}

// AddFlags adds --wait, --timeout and --progress. what completes "wait until".
func (w *Waiting) AddFlags(c *cobra.Command, what string, timeout time.Duration) {
	c.Flags().BoolVar(&w.Wait, "wait", false, "wait until "+what)
	w.addFlags(c, timeout)
}

// AddFlagsAlways adds --timeout and --progress to a command that always waits.
func (w *Waiting) AddFlagsAlways(c *cobra.Command, timeout time.Duration) {
	w.Wait = true
	w.addFlags(c, timeout)
}

func (w *Waiting) addFlags(c *cobra.Command, timeout time.Duration) {
	c.Flags().DurationVar(&w.timeout, "timeout", timeout, "how long to wait, such as 90s or 2h; 0 waits forever")
	w.Display.AddFlag(c, "while waiting")
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if w.timeout < 0 {
			return failure.Usage("--timeout %s: it must not be negative", w.timeout)
		}
		if !w.Wait && (c.Flags().Changed("timeout") || c.Flags().Changed("progress")) {
			return failure.Usage("--timeout and --progress need --wait")
		}
		if check != nil {
			return check(c, args)
		}
		return nil
	}
}

// Run shows progress while f waits, within the timeout. goal completes "until"; describe is the command, without the
// program, that shows the state later.
func (w *Waiting) Run(ctx context.Context, s *Session, goal, describe string, f func(ctx context.Context, show func(progress.Report)) error) error {
	return w.run(ctx, s, w.ShowWhile, goal, describe, f)
}

// RunEach is Run for what goes on at the same time: each name of a report is shown by itself.
func (w *Waiting) RunEach(ctx context.Context, s *Session, goal, describe string, f func(ctx context.Context, show func(progress.Report)) error) error {
	return w.run(ctx, s, w.ShowEach, goal, describe, f)
}

// display is one of the methods of session.Display.
type display = func(s *session.Session, f func(show func(progress.Report)) error) error

func (w *Waiting) run(ctx context.Context, s *Session, show display, goal, describe string, f func(ctx context.Context, show func(progress.Report)) error) error {
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, failure.ErrTimeout)
		defer cancel()
	}
	var last lastReports
	err := show(s.Session, func(show func(progress.Report)) error {
		return f(ctx, func(r progress.Report) {
			last.add(r)
			show(r)
		})
	})
	switch {
	case errors.Is(err, failure.ErrTimeout):
		return &failure.Error{
			Err: fmt.Errorf("%w after %s while waiting until %s; last seen: %s", failure.ErrTimeout, w.timeout, goal, &last), Code: errclass.ExitTimeout,
			Hint: "nothing was undone: " + s.CommandHint(describe) + " shows its progress",
		}
	case cluster.Classify(err) == cluster.Interrupted && err != nil:
		return &failure.Error{
			Err: fmt.Errorf("interrupted while waiting until %s: %w", goal, err), Code: errclass.ExitInterrupted,
			Hint: "nothing was undone: " + s.CommandHint(describe) + " shows its progress",
		}
	default:
		return err
	}
}

// WaitFunc waits for something, and shows how far it is.
type WaitFunc = func(ctx context.Context, show func(progress.Report)) error

// lastReports are the last report of each name. Its methods may be called from several goroutines.
type lastReports struct {
	mu  sync.Mutex
	all []progress.Report
}

func (l *lastReports) add(r progress.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.all, func(o progress.Report) bool { return o.Name == r.Name }); i >= 0 {
		l.all[i] = r
		return
	}
	l.all = append(l.all, r)
}

func (l *lastReports) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return progress.Report{}.String()
	}
	var texts []string
	for _, r := range l.all {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, "; ")
}
