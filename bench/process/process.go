// Package process runs the programs that benchmarks measure, and reads what they use of the processors.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LastWords is how long a program may take to exit after it was told to.
const LastWords = 10 * time.Second

// Start starts a command that the kernel kills when this process ends. The channel has the outcome of Wait.
func Start(cmd *exec.Cmd) (<-chan error, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel kills the process when the thread that started it ends, so that thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-started
}

// clockTick is the unit of the kernel's processor times, everywhere on Linux.
const clockTick = 10 * time.Millisecond

// ProcessorTime returns what a running process has used so far, and 0 if pid is 0.
func ProcessorTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(stat))
}

// parseStat reads user and system time, fields 14 and 15, from /proc/PID/stat (proc(5)). Field 2 may contain spaces and parentheses.
func parseStat(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("a process' stat is %q", stat)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("a process' stat is %q: %w", stat, err)
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}

// Memory returns the resident memory of a running process in bytes, and the largest that it had.
func Memory(pid int) (resident, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	resident, errResident := parseMemory(string(status), "VmRSS:")
	peak, errPeak := parseMemory(string(status), "VmHWM:")
	return resident, peak, errors.Join(errResident, errPeak)
}

// parseMemory reads a field of /proc/PID/status (proc(5)), which is in KiB, and returns bytes.
func parseMemory(status, field string) (int64, error) {
	for line := range strings.Lines(status) {
		value, found := strings.CutPrefix(line, field)
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("a process' status has %q: %w", line, err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("a process' status has no %s", field)
}
