// Package proc identifies processes, so that a recorded process is never confused with a later one that has the same PID.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID identifies one process for ever: its PID, its start time (clock ticks after boot, field 22 of /proc/PID/stat)
// and the boot that both belong to.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"startTicks"`
	Boot  string `json:"bootID"`
}

// Of returns the identity of the process that currently has the PID. A zombie counts as gone: os.ErrNotExist.
func Of(pid int) (ID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	state, start, err := parseStat(stat)
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("identify process %d: it has ended: %w", pid, os.ErrNotExist)
	}
	boot, err := BootID()
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, Start: start, Boot: boot}, nil
}

// BootID identifies the machine's current boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// parseStat reads the state and the start time from a line of /proc/PID/stat. The command name, in parentheses, may
// itself contain spaces and parentheses.
func parseStat(stat []byte) (state byte, start uint64, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("malformed stat line")
	}
	fields := strings.Fields(string(stat[end+1:])) // from field 3 on
	if len(fields) < 20 {
		return 0, 0, errors.New("malformed stat line")
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("malformed stat line: %w", err)
	}
	return fields[0][0], start, nil
}

// Alive says whether the process is still running.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	now, err := Of(id.PID)
	return err == nil && now == id
}

// Kill sends SIGKILL to exactly this process and waits until it is gone. A process that is already gone is no error.
func (id ID) Kill(ctx context.Context) error {
	if id.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	defer unix.Close(fd) //nolint:errcheck // a pidfd holds nothing that closing could lose
	if !id.Alive() {     // checked after the pidfd pins the PID
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	for id.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the killed process %d to end: %w", id.PID, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}
