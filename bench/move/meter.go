package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/internal/datamove"
)

// meterInterval is how often the meter looks at processes. What a mover uses in the last interval before its end is not seen.
const meterInterval = 50 * time.Millisecond

// The processes that are told apart.
const (
	moverProcess    = "mover"
	qemuProcess     = "qemu"
	launcherProcess = "launcher" // everything in the launcher pod but QEMU
	s3Process       = "s3"
	varveProcess    = "handlers+controller"
	restProcess     = "kubernetes" // everything else of the box
	kopiaProcess    = "kopia"
	convertProcess  = "qemu-img"
)

// usage is what processes have used.
type usage struct {
	processors map[string]time.Duration
	// moverBytes is the largest resident set of a mover.
	moverBytes int64
}

// String shows the processor seconds by process.
func (u *usage) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(u.processors)) {
		all = append(all, fmt.Sprintf("%s %.1f s", name, u.processors[name].Seconds()))
	}
	return fmt.Sprintf("processors: %s; mover's peak %d MiB", strings.Join(all, ", "), u.moverBytes/mib)
}

// plus returns the sum of two; other may be nil.
func (u *usage) plus(other *usage) *usage {
	sum := &usage{processors: maps.Clone(u.processors), moverBytes: u.moverBytes}
	if other != nil {
		for name, used := range other.processors {
			sum.processors[name] += used
		}
		sum.moverBytes = max(sum.moverBytes, other.moverBytes)
	}
	return sum
}

// meter watches the processes of the box while objects are served. Nodes and pods are processes of this machine.
type meter struct {
	objects []client.Object
	seen    map[int]*seenProcess
	end     chan struct{}
	ended   chan struct{}
}

// seenProcess is a process of the box.
type seenProcess struct {
	name string
	// pod is the name of a mover's pod.
	pod          string
	first, last  time.Duration
	peak         int64
	introduction time.Time
}

// startMeter starts to watch. objects are those that are about to be created.
func (b *bench) startMeter(ctx context.Context, objects ...client.Object) (*meter, error) {
	m := &meter{objects: objects, seen: map[int]*seenProcess{}, end: make(chan struct{}), ended: make(chan struct{})}
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", b.qemu))
	if err != nil {
		return nil, err
	}
	launcher := string(group)
	m.look(launcher, true)
	go func() {
		defer close(m.ended)
		tick := time.NewTicker(meterInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.look(launcher, false)
			case <-m.end:
				m.look(launcher, false)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return m, nil
}

// stop returns what was used since the start.
func (m *meter) stop() *usage {
	close(m.end)
	<-m.ended
	u := &usage{processors: map[string]time.Duration{}}
	ours := map[string]bool{}
	for _, o := range m.objects {
		kind := datamove.Upload
		if _, download := o.(*velerov2.DataDownload); download {
			kind = datamove.Download
		}
		ours[datamove.ChildName(kind, o.GetUID())] = true
	}
	for _, p := range m.seen {
		if p.name == "" || p.name == moverProcess && !ours[p.pod] {
			continue
		}
		u.processors[p.name] += p.last - p.first
		if p.name == moverProcess {
			u.moverBytes = max(u.moverBytes, p.peak)
		}
	}
	return u
}

// settleTime is how long a new process may take to become the program that it is started for.
const settleTime = time.Second

// look reads what the processes have used. At the first look, what they have used before does not count.
func (m *meter) look(launcher string, first bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p := m.seen[pid]
		if p == nil {
			p = &seenProcess{introduction: time.Now()}
			m.seen[pid] = p
		}
		if first || p.name != moverProcess && time.Since(p.introduction) < settleTime {
			p.introduce(pid, launcher)
		}
		if p.name == "" {
			continue
		}
		used, err := process.ProcessorTime(pid)
		if err != nil {
			continue // it has ended
		}
		if p.last = used; first {
			p.first = used
		}
		if p.name == moverProcess {
			p.peak = max(p.peak, peakOf(pid))
		}
	}
}

// introduce says what a process is. Its name stays empty if it is none of the box.
func (p *seenProcess) introduce(pid int, launcher string) {
	directory := filepath.Join("/proc", strconv.Itoa(pid))
	group, err := os.ReadFile(filepath.Join(directory, "cgroup"))
	if err != nil || !bytes.Contains(group, []byte("/varve-box-")) {
		return
	}
	command, err := os.ReadFile(filepath.Join(directory, "cmdline"))
	if err != nil {
		return
	}
	args := strings.Split(string(command), "\x00")
	program, verb := filepath.Base(args[0]), ""
	if len(args) > 1 {
		verb = args[1]
	}
	inLauncher := string(group) == launcher
	switch {
	case program == "varve" && verb == "mover":
		p.name = moverProcess
		p.pod = environmentOf(directory)
	case inLauncher && strings.HasPrefix(program, "qemu-system"):
		p.name = qemuProcess
	case inLauncher:
		p.name = launcherProcess
	case program == veleroLike:
		p.name = kopiaProcess
	case program == "qemu-img":
		p.name = convertProcess
	case program == "versitygw":
		p.name = s3Process
	case program == "varve" && (verb == "handler" || verb == "controller"):
		p.name = varveProcess
	default:
		p.name = restProcess
	}
}

// environmentOf returns the name of the pod that a process is in.
func environmentOf(directory string) string {
	text, err := os.ReadFile(filepath.Join(directory, "environ"))
	if err != nil {
		return ""
	}
	for variable := range strings.SplitSeq(string(text), "\x00") {
		if name, found := strings.CutPrefix(variable, "HOSTNAME="); found {
			return name
		}
	}
	return ""
}

// peakOf returns the largest resident set of a process so far, in bytes, and 0 of one that has ended.
func peakOf(pid int) int64 {
	_, peak, err := process.Memory(pid)
	if err != nil {
		return 0
	}
	return peak
}

// findQEMU returns the ID of the machine's QEMU, which runs on this machine as all of the box does.
func findQEMU() (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(command, []byte("guest="+namespace+"_"+vmName+",")) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("this machine runs no QEMU of %s: the box must be here", vmName)
}
