package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
)

// maxPasswordBytes bounds what is read from a password file.
const maxPasswordBytes = 4096

// ReadPassword returns the repository's password from the file, the environment or a prompt. It asks for a new one twice.
func (s *Session) ReadPassword(ctx context.Context, create bool) (string, error) {
	if path := s.passwordFile; path != "" {
		return s.readPasswordFile(path)
	}
	if p := s.Getenv("VARVE_PASSWORD"); p != "" {
		return p, nil
	}
	if s.Streams.ReadPassword == nil {
		return "", failure.Usage("no password: give --password-file, set VARVE_PASSWORD, or run this on a terminal to be asked")
	}
	p, err := s.askPassword(ctx, "Password of the repository: ")
	if err != nil || !create {
		return p, err
	}
	again, err := s.askPassword(ctx, "Repeat the password: ")
	if err != nil {
		return "", err
	}
	if p != again {
		return "", failure.Usage("the two passwords differ")
	}
	return p, nil
}

// AsksPassword reports whether the user would have to type the password.
func (s *Session) AsksPassword() bool {
	return !s.inCluster.isUsed() && s.passwordFile == "" && s.Getenv("VARVE_PASSWORD") == ""
}

func (s *Session) readPasswordFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", failure.Usage("--password-file: %s", err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 {
		fmt.Fprintf(s.Streams.Err, "warning: every user of this machine can read the password in %s: run `chmod o-r` on it\n", human.Line(path))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPasswordBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", failure.Usage("--password-file: %s", err)
	}
	// A newline that an editor or echo adds is not part of it.
	p := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case len(text) > maxPasswordBytes:
		return "", failure.Usage("--password-file %s: the file has more than %d bytes", path, maxPasswordBytes)
	case p == "":
		return "", failure.Usage("--password-file %s: the file is empty", path)
	case strings.ContainsAny(p, "\r\n"):
		return "", failure.Usage("--password-file %s: the file has more than one line", path)
	}
	return p, nil
}

func (s *Session) askPassword(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(s.Streams.Err, prompt)
	p, err := s.Streams.ReadPassword(ctx)
	fmt.Fprintln(s.Streams.Err)
	switch {
	case err != nil:
		return "", failure.Interrupted(ctx, fmt.Errorf("read the password: %w", err), "", "")
	case p == "":
		return "", failure.Usage("the password is empty")
	}
	return p, nil
}
