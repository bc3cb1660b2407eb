// Package guestagent runs shell scripts in guests of tests, through the QEMU guest agent. The agent starts a program
// and is asked later whether it has ended: guest-exec and guest-exec-status of QEMU's agent protocol.
package guestagent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/varvebackup/varve/test/wait"
)

// Agent sends a command to a guest's agent and returns its answer, both in JSON.
type Agent func(ctx context.Context, command string) (answer string, err error)

// Command returns a command of the agent's protocol. Without arguments, arguments is nil.
func Command(name string, arguments any) (string, error) {
	command := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{name, arguments}
	text, err := json.Marshal(command)
	return string(text), err
}

// Script returns the command that starts a shell script, whose output the agent keeps.
func Script(script string) (string, error) {
	return Command("guest-exec", map[string]any{"path": "/bin/sh", "arg": []string{"-c", script}, "capture-output": true})
}

// Start starts a script in the guest, and returns its number for guest-exec-status.
func (a Agent) Start(ctx context.Context, script string) (pid int, err error) {
	command, err := Script(script)
	if err != nil {
		return 0, err
	}
	answer, err := a(ctx, command)
	if err != nil {
		return 0, fmt.Errorf("guest-exec: %w", err)
	}
	var started struct {
		Return struct {
			PID int `json:"pid"`
		} `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &started); err != nil {
		return 0, fmt.Errorf("guest-exec: the agent answered %q: %w", answer, err)
	}
	return started.Return.PID, nil
}

// Run runs a script in the guest to its end and returns its output. A guest that is paused does not answer, so what
// the agent says about a script that has started is asked for again, until the limit.
func (a Agent) Run(ctx context.Context, limit time.Duration, script string) (string, error) {
	pid, err := a.Start(ctx, script)
	if err != nil {
		return "", err
	}
	command, err := Command("guest-exec-status", map[string]any{"pid": pid})
	if err != nil {
		return "", err
	}
	var s status
	err = wait.For(ctx, limit, "the script's end", func(ctx context.Context) (bool, string, error) {
		answer, err := a(ctx, command)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the agent may answer the next time
		}
		s, err = decode(answer)
		return s.Exited, "it runs", err
	})
	if err != nil {
		return "", err
	}
	return s.output()
}

// Output returns the output of a script from the agent's answer to guest-exec-status. It fails if the script has
// failed; the error then has what the script wrote.
func Output(answer string) (string, error) {
	s, err := decode(answer)
	if err != nil {
		return "", err
	}
	return s.output()
}

// status is what guest-exec-status returns.
type status struct {
	Exited   bool   `json:"exited"`
	ExitCode int    `json:"exitcode"`
	Signal   int    `json:"signal"`
	Out      string `json:"out-data"` // in base64
	Err      string `json:"err-data"`
}

func decode(answer string) (status, error) {
	var reply struct {
		Return status `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &reply); err != nil {
		return status{}, fmt.Errorf("guest-exec-status: the agent answered %q: %w", answer, err)
	}
	return reply.Return, nil
}

func (s status) output() (string, error) {
	stdout, err := base64.StdEncoding.DecodeString(s.Out)
	if err != nil {
		return "", fmt.Errorf("guest-exec-status: standard output: %w", err)
	}
	stderr, err := base64.StdEncoding.DecodeString(s.Err)
	if err != nil {
		return "", fmt.Errorf("guest-exec-status: standard error: %w", err)
	}
	if !s.Exited || s.ExitCode != 0 || s.Signal != 0 {
		return string(stdout), fmt.Errorf("ended %v, exit code %d, signal %d\n%s%s", s.Exited, s.ExitCode, s.Signal, stdout, stderr)
	}
	return string(stdout), nil
}
