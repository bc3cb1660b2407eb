package launcher

import (
	"errors"
	"testing"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// step is one thing that happens to a guest.
type step func(life) life

func is(state domain.State, reason domain.Reason) step {
	return func(l life) life { return l.afterReport(state, reason) }
}

func TestLife(t *testing.T) {
	t.Parallel()
	var (
		start    = step(life.afterStartCall)
		up       = step(life.afterStart)
		stop     = step(life.afterShutdownCall)
		kill     = step(life.beforeKill)
		running  = is(domain.StateRunning, "")
		ioPause  = is(domain.StatePaused, domain.ReasonIOError)
		poweroff = is(domain.StateShuttingDown, "")
		panics   = is(domain.StateShuttingDown, domain.ReasonCrashed)
		off      = is(domain.StateShutOff, domain.ReasonShutdown)
		gone     = is(domain.StateShutOff, domain.ReasonDestroyed)
		died     = is(domain.StateShutOff, domain.ReasonCrashed)
		failed   = is(domain.StateShutOff, domain.ReasonFailed)
		runs     = step(life.afterRunEvent)
		lost     = step(func(l life) life { return l.afterLoss("libvirtd died") })
		refused  = step(func(l life) life { return l.startFailed(errors.New("no disk")) })
	)
	for name, c := range map[string]struct {
		steps []step
		phase pb.State_Phase
		end   pb.State_End
		clean bool
		code  int
	}{
		"nothing":                   {nil, pb.State_IDLE, 0, false, 1},
		"starting":                  {[]step{start}, pb.State_STARTING, 0, false, 1},
		"events of a start":         {[]step{start, ioPause, running}, pb.State_STARTING, 0, false, 1},
		"running":                   {[]step{start, up, running}, pb.State_RUNNING, 0, false, 1},
		"start fails":               {[]step{start, failed, refused}, pb.State_ENDED, pb.State_START_FAILED, false, 1},
		"paused":                    {[]step{start, up, ioPause}, pb.State_PAUSED, 0, false, 1},
		"paused and resumed":        {[]step{start, up, ioPause, running}, pb.State_RUNNING, 0, false, 1},
		"powers off":                {[]step{start, up, poweroff}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"is off":                    {[]step{start, up, poweroff, off}, pb.State_ENDED, pb.State_GUEST_SHUTDOWN, true, 0},
		"is off, event lost":        {[]step{start, up, off}, pb.State_ENDED, pb.State_GUEST_SHUTDOWN, true, 0},
		"asked":                     {[]step{start, up, stop}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"asked while starting":      {[]step{start, stop, up}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"asked while paused":        {[]step{start, up, ioPause, stop, running}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"asked and obeys":           {[]step{start, up, stop, poweroff, off}, pb.State_ENDED, pb.State_REQUESTED_SHUTDOWN, true, 0},
		"obeys at the last moment":  {[]step{start, up, stop, kill, off}, pb.State_ENDED, pb.State_REQUESTED_SHUTDOWN, true, 0},
		"is killed":                 {[]step{start, up, stop, kill, gone}, pb.State_ENDED, pb.State_KILLED, true, 0},
		"stopped before start":      {[]step{stop, start}, pb.State_ENDED, pb.State_REQUESTED_SHUTDOWN, true, 0},
		"off, but QEMU hangs":       {[]step{start, up, poweroff, kill, gone}, pb.State_ENDED, pb.State_GUEST_SHUTDOWN, true, 0},
		"off, hangs, and asked":     {[]step{start, up, poweroff, stop, kill, gone}, pb.State_ENDED, pb.State_KILLED, true, 0},
		"reboot by libvirt":         {[]step{start, up, poweroff, runs}, pb.State_RUNNING, 0, false, 1},
		"a read that is too old":    {[]step{start, up, poweroff, running}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"runs again when asked":     {[]step{start, up, stop, poweroff, runs}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"runs again, and is killed": {[]step{start, up, poweroff, runs, stop, kill, gone}, pb.State_ENDED, pb.State_KILLED, true, 0},
		"panics, but QEMU hangs":    {[]step{start, up, panics, runs, kill, gone}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"panics":                    {[]step{start, up, panics, gone}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"QEMU dies":                 {[]step{start, up, died}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"QEMU dies while asked":     {[]step{start, up, stop, failed}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"destroyed from outside":    {[]step{start, up, gone}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"libvirt lost":              {[]step{start, up, lost}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"libvirt lost too early":    {[]step{start, lost}, pb.State_ENDED, pb.State_START_FAILED, false, 1},
		"what ended it first":       {[]step{start, up, off, lost, died, stop}, pb.State_ENDED, pb.State_GUEST_SHUTDOWN, true, 0},
		"no life after the end":     {[]step{start, up, died, running, up, start}, pb.State_ENDED, pb.State_CRASHED, false, 1},
		"a start that comes twice":  {[]step{start, up, start, up}, pb.State_RUNNING, 0, false, 1},
		"paused while going down":   {[]step{start, up, stop, ioPause}, pb.State_SHUTTING_DOWN, 0, false, 1},
		"reboot":                    {[]step{start, up, running, running}, pb.State_RUNNING, 0, false, 1},
		"connection lost when idle": {[]step{lost}, pb.State_ENDED, pb.State_START_FAILED, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l life
			for _, s := range c.steps {
				l = s(l)
			}
			if l.phase != c.phase || l.end != c.end || l.endedClean() != c.clean || l.exitCode() != c.code {
				t.Errorf("%v %v clean %v code %d, want %+v", l.phase, l.end, l.endedClean(), l.exitCode(), c)
			}
			if l.hasEnded() && l.message == "" {
				t.Error("ended without a word")
			}
		})
	}
}

func TestLife_pauseSaysWhy(t *testing.T) {
	t.Parallel()
	l := life{}.afterStartCall().afterStart().ioError("root", "enospc").afterReport(domain.StatePaused, domain.ReasonIOError)
	if want := "paused: I/O error on disk root: enospc"; l.message != want {
		t.Errorf("%q, want %q", l.message, want)
	}
	if l = l.afterReport(domain.StateRunning, ""); l.message != "" {
		t.Errorf("after it: %q", l.message)
	}
}
