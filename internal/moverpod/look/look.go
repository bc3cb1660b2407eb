// Package look is the program of the pods that look into storages which only pods can mount, `varve mover look`.
//
// It looks once, and leaves what it has seen in its termination message. It has no account.
package look

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Options are what Run needs. None has a default.
type Options struct {
	// Look is what repositoryaccess.LookVariable has.
	Look string
	// PasswordFile has the password, if there is one.
	PasswordFile string
	// MessageFile gets what was seen.
	MessageFile string
	// Now tells the time.
	Now func() time.Time
}

// Run looks. It fails only if it cannot say what it has seen: that the storage cannot be used is an answer.
func Run(ctx context.Context, o Options) error {
	l, err := repositoryaccess.DecodeLook(o.Look)
	if err != nil {
		return err
	}
	password, err := os.ReadFile(o.PasswordFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the password: %w", err)
	}
	l.Access.Password = strings.TrimRight(string(password), "\r\n")
	seen := l.Run(ctx, repositoryaccess.NewStore(o.Now, nil))
	if err := os.WriteFile(o.MessageFile, seen.Encode(), 0o600); err != nil {
		return fmt.Errorf("say what was seen: %w", err)
	}
	return nil
}
