package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/export/server"
)

// pull is a row: one way to read the backup.
type pull struct {
	id, what string
	task     clientTask
	// curl says that curl reads, in place of this program.
	curl bool
}

var pulls = []pull{
	{id: "pull-data-1", what: "the disk over HTTPS, one connection", task: clientTask{Read: readData, Volume: full, Connections: 1}},
	{id: "pull-data-4", what: "the disk over HTTPS, four connections", task: clientTask{Read: readData, Volume: full, Connections: 4}},
	{id: "pull-data-1-curl", what: "the disk with curl", task: clientTask{Read: readData, Volume: full, Connections: 1}, curl: true},
	{id: "pull-data-4-curl", what: "the disk with four curls", task: clientTask{Read: readData, Volume: full, Connections: 4}, curl: true},
	{id: "pull-stream", what: "the disk as a stream, verified", task: clientTask{Read: readStream, Volume: full, Connections: 1}},
	{id: "pull-scattered-data", what: "changes of 64 KiB, the map and a request for each", task: clientTask{Read: readRegions, Volume: changes, Connections: 1}},
	{id: "pull-scattered-stream", what: "the same as a stream, verified", task: clientTask{Read: readStream, Volume: changes, Connections: 1}},
}

const peerName = "nbdcopy to null:"

// readings are the rounds of one row, or of its peer.
type readings struct {
	rate report.Sample
	// processors has the processor seconds for each GiB, by process.
	processors map[string]report.Sample
}

func (r *readings) add(bytes int64, u usage) {
	r.rate = append(r.rate, float64(bytes)/float64(mib)/u.wall.Seconds())
	if r.processors == nil {
		r.processors = map[string]report.Sample{}
	}
	for name, used := range u.processors {
		r.processors[name] = append(r.processors[name], used.Seconds()*float64(gib)/float64(bytes))
	}
}

func (r *readings) medianProcessors() map[string]float64 {
	all := map[string]float64{}
	for name, s := range r.processors {
		all[name] = s.Median()
	}
	return all
}

// measureAll returns the figures, and what they depend on apart from the machine.
func measureAll(ctx context.Context, o *options) (rows []report.Row, facts map[string]any, err error) {
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return nil, nil, err
		}
	}
	r, err := openRig(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var peer readings
	all := make([]readings, len(pulls))
	for round := range o.rounds + 1 {
		u, err := r.measurePeer(ctx)
		if err != nil {
			return nil, nil, err
		}
		if round > 0 {
			peer.add(r.diskBytes, u)
		}
		for i, p := range pulls {
			if !o.wants(p.id) {
				continue
			}
			bytes, u, err := r.measurePull(ctx, p, round == 0)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", p.id, err)
			}
			if round > 0 {
				all[i].add(bytes, u)
			}
		}
	}
	for i, p := range pulls {
		if o.wants(p.id) {
			row := report.Larger(p.id, p.what, "MiB/s", all[i].rate, peerName, peer.rate)
			row.Processors, row.PeerProcessors = all[i].medianProcessors(), peer.medianProcessors()
			rows = append(rows, row)
		}
	}
	facts, err = r.collectFacts(ctx)
	return rows, facts, err
}

func (r *rig) collectFacts(ctx context.Context) (map[string]any, error) {
	versions := map[string]string{}
	for _, program := range []string{"nbdcopy", "qemu-storage-daemon", "curl"} {
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		if err != nil {
			return nil, err
		}
		versions[program], _, _ = strings.Cut(string(out), "\n")
	}
	return map[string]any{"rounds": r.rounds, "diskMiB": r.diskBytes / mib, "changedMiB": r.changed / mib, "versions": versions}, nil
}

// usage is what a reader of the disk used, and everything that worked for it.
type usage struct {
	wall       time.Duration
	processors map[string]time.Duration
}

// measurePeer reads the disk with nbdcopy.
func (r *rig) measurePeer(ctx context.Context) (usage, error) {
	return r.measureCommands(map[string]int{"qemu": r.disk.PID()}, "nbdcopy", exec.CommandContext(ctx, "nbdcopy", r.disk.URI(), "null:"))
}

// measurePull reads the backup, and returns how much of it there is.
func (r *rig) measurePull(ctx context.Context, p pull, compare bool) (int64, usage, error) {
	task := p.task
	task.DiskBytes, task.Bytes = r.diskBytes, r.diskBytes
	if task.Volume == changes {
		task.Bytes = r.changed
	}
	if compare {
		task.Compare = filepath.Join(r.dir, imageName)
	}
	commands, err := r.clientCommands(ctx, p, task)
	if err != nil {
		return 0, usage{}, err
	}
	u, err := r.measureCommands(map[string]int{"qemu": r.disk.PID(), "launcher": r.launcher.pid(), "server": r.server.pid()}, "client", commands...)
	return task.Bytes, u, err
}

// clientCommands returns the commands that run at the same time.
func (r *rig) clientCommands(ctx context.Context, p pull, task clientTask) ([]*exec.Cmd, error) {
	if !p.curl {
		cmd, err := r.roleCommand(ctx, clientRole, role{HTTPS: r.addresses.HTTPS, Client: task})
		return []*exec.Cmd{cmd}, err
	}
	var all []*exec.Cmd
	for _, part := range parts(r.diskBytes, task.Connections) {
		all = append(all, exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--fail", "--output", "/dev/null", "--cacert", filepath.Join(r.dir, certificateFile),
			"--header", server.TokenHeader+": "+token, "--header", "Range: "+byteRange(part), "https://"+r.addresses.HTTPS+"/exports/"+task.Volume+"/data"))
	}
	return all, nil
}

// measureCommands runs commands side by side until the last one has ended. beside has the processes that work for them.
func (r *rig) measureCommands(beside map[string]int, name string, commands ...*exec.Cmd) (usage, error) {
	u := usage{processors: map[string]time.Duration{}}
	for name, pid := range beside {
		before, err := process.ProcessorTime(pid)
		if err != nil {
			return u, err
		}
		u.processors[name] = -before
	}
	start := time.Now()
	var failures []error
	said := make([]bytes.Buffer, len(commands))
	ended := make([]<-chan error, len(commands))
	for i, cmd := range commands {
		cmd.Stderr = &said[i]
		var err error
		if ended[i], err = process.Start(cmd); err != nil {
			return u, err
		}
	}
	for i, cmd := range commands {
		if err := <-ended[i]; err != nil {
			failures = append(failures, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(said[i].Bytes())))
			continue
		}
		u.processors[name] += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	u.wall = time.Since(start)
	for name, pid := range beside {
		after, err := process.ProcessorTime(pid)
		if err != nil {
			return u, err
		}
		u.processors[name] += after
	}
	return u, errors.Join(failures...)
}
