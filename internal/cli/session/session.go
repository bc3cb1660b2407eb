// Package session is what the commands of one run share: streams, clock, environment, questions and progress.
package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// Session is what the commands of one run share.
type Session struct {
	Streams Streams
	// Now is the clock for ages.
	Now func() time.Time
	// Env looks up an environment variable; an absent one is empty.
	Env func(name string) string
}

// Streams are where a run reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Terminal says that Err is a terminal, so that a live bar can be drawn on it.
	Terminal bool
	// ReadPassword reads a line from In without showing it. It is nil if In is no terminal, so that nothing can be
	// asked.
	ReadPassword func(ctx context.Context) (string, error)
}

// Getenv returns an environment variable, or "" if it is absent.
func (s *Session) Getenv(name string) string {
	if s.Env == nil {
		return ""
	}
	return s.Env(name)
}

// Warn reports what does not end the command.
func (s *Session) Warn(err error) {
	fmt.Fprintf(s.Streams.Err, "warning: %s\n", human.Line(err.Error()))
}

// Note tells what the user waits for.
func (s *Session) Note(format string, args ...any) {
	fmt.Fprintln(s.Streams.Err, human.Line(fmt.Sprintf(format, args...)))
}

// Confirm asks before an action that cannot be undone.
func (s *Session) Confirm(ctx context.Context, question string) error {
	fmt.Fprint(s.Streams.Err, question+" [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(s.Streams.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return failure.New("", "nothing was done, because the answer was not yes")
	}
}
