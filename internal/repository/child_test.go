package repository

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
)

const (
	// childJob is the variable that makes the test program a child. It names the file with the job.
	childJob = "VARVE_TEST_JOB"
	// childTimeout bounds how long a child runs.
	childTimeout = 2 * time.Minute
)

// job is an operation on a site, done by this process or by one that may be killed during it.
type job struct {
	// Config is the connection, Site is the site's directory and Ahead its clock.
	Config, Site string
	Ahead        time.Duration
	// Do is backUp, backUpFiles (of Root, with the ID), restoreFiles (into Root), remove, pin, maintain, read (under a lease), or hold (take, renew and release a lock).
	Do string

	Source      Source
	Time        time.Time
	Disks       []jobDisk
	Parent      string
	BlockBytes  int64
	Compression string
	Workers     int
	// Every is how often what was stored is made findable.
	Every time.Duration

	// IDs are restore points to remove, or the one to read, to pin with Pin, or to unpin from it.
	IDs   []string
	Pin   string
	Unpin bool

	Mode      MaintenanceMode
	Exclusive bool

	// Slow is how long each read of a disk takes.
	Slow time.Duration

	// Root is a directory, and Files is how many files of it are done when the process kills itself; 0: it does not.
	Root  string
	Files int64
	// Slept is how much later it is after the first read than before it, as if the machine had slept.
	Slept time.Duration

	// Dies is the number of blobs to put or delete before the process kills itself; 0: it does not.
	Dies int64
	// Cuts is the number of the blob that is half written when the process kills itself; 0: it does not.
	Cuts int64
	// Failpoint is where the process kills itself, when it passes there for the Pass-th time.
	Failpoint string
	Pass      int64
	// Gate, if not 0, keeps reads at or behind it from ending. Passes of the failpoint then count only after such a read.
	Gate int64

	site  *site
	once  sync.Once
	gated atomic.Bool
}

// jobDisk is a disk to be backed up.
type jobDisk struct {
	Name, Identity, Change string
	Bytes                  int64
	// Data and Set are extents; nil if unknown.
	Data, Set *[]extent.Extent
	Since     string
	// File holds the content, for a child.
	File string
	disk *sparse
}

// outcome is how a job ended.
type outcome struct {
	// Killed says that it did not end by itself.
	Killed bool `json:"-"`
	// ID is the ID of the restore point that was made or pinned.
	ID string
	// Uploaded is what Progress reported.
	Uploaded int64
	// Error is the error, and the following say of which class it is.
	Error    string
	Conflict bool
	NotFound bool
	// Changes is how many blobs were put or deleted.
	Changes int64
}

// request returns the request for a backup.
func (j *job) request(uploaded *atomic.Int64) Request {
	q := Request{
		Source: j.Source, Time: j.Time, Parent: j.Parent, BlockBytes: j.BlockBytes, Compression: j.Compression, Workers: j.Workers, FlushEvery: j.Every,
		Definition: []byte(testDefinition), // the same in all restore points, so that none may take that of another one for stored
		Progress:   func(p Progress) { uploaded.Store(p.UploadedBytes) },
	}
	for _, d := range j.Disks {
		var reader Reader = d.disk
		if d.disk == nil {
			reader = fileReader{d.File}
		}
		reader = &jobReader{Reader: reader, job: j}
		s := DiskSource{Name: d.Name, Bytes: d.Bytes, Reader: reader, Identity: d.Identity, Change: d.Change}
		if d.Data != nil {
			data := extent.NewSet(*d.Data...)
			s.Data = &data
		}
		if d.Set != nil {
			// Set is Exclusive so that only what changed is read: tests count that.
			s.Changes = &Changes{Since: d.Since, Set: extent.NewSet(*d.Set...), Exclusive: true}
		}
		q.Disks = append(q.Disks, s)
	}
	return q
}

// do does the job in this process.
func (j *job) do(ctx context.Context, r *Repository) outcome {
	var uploaded atomic.Int64
	var p *RestorePoint
	var err error
	switch j.Do {
	case "backUp":
		p, err = r.Backup(ctx, j.request(&uploaded))
	case "backUpFiles":
		p, err = r.BackupFiles(ctx, FilesRequest{ID: j.IDs[0], Source: j.Source, Time: j.Time, Root: j.Root, FlushEvery: j.Every, Parallel: 1, Progress: j.countFiles})
	case "restoreFiles":
		err = r.RestoreFiles(ctx, FilesRestoreRequest{ID: j.IDs[0], Directory: j.Root, Parallel: 1, Progress: j.countFiles})
	case "remove":
		err = r.Delete(ctx, j.IDs...)
	case "pin":
		add, remove := []string{j.Pin}, []string(nil)
		if j.Unpin {
			add, remove = remove, add
		}
		p, err = r.Pin(ctx, j.IDs[0], add, remove)
	case "maintain":
		err = r.Maintain(ctx, MaintenanceOptions{Mode: j.Mode, Exclusive: j.Exclusive})
	case "read":
		var l *Lease
		if l, err = r.Lease(ctx, j.IDs[0], func(error) {}); err == nil {
			err = l.Release()
		}
	case "hold":
		var l *engine.Lock
		if _, l, err = r.conn.Lock(ctx, "maintenance"); err == nil {
			err = errors.Join(l.Renew(), l.Release())
		}
	default:
		err = fmt.Errorf("nothing is called %q", j.Do)
	}
	o := outcome{Uploaded: uploaded.Load(), Conflict: errors.Is(err, errclass.Conflict), NotFound: errors.Is(err, errclass.NotFound)}
	if err != nil {
		o.Error = err.Error()
	} else if p != nil {
		o.ID = p.ID
	}
	return o
}

// countFiles ends the process after enough files. Progress that was reported since the last call is late.
func (j *job) countFiles(p FilesProgress) {
	if j.Files > 0 && p.DoneFiles >= j.Files && p.DoneFiles < p.TotalFiles {
		die()
	}
}

// child does a job in a process of its own. It reports when it has opened the repository, and what came of the job in the end.
func child(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	s := &site{dir: j.Site}
	s.ahead.Store(int64(j.Ahead))
	sites.Store(j.Site, s)
	j.site = s
	var opened atomic.Bool
	var changes, passes atomic.Int64
	s.changed = func(string, blob.ID) {
		if opened.Load() && changes.Add(1) == j.Dies {
			die()
		}
	}
	var begun atomic.Int64
	s.writing = func() bool { return opened.Load() && begun.Add(1) == j.Cuts }
	engine.Failpoint = func(step string) {
		if step == j.Failpoint && (j.Gate == 0 || j.gated.Load()) && passes.Add(1) == j.Pass {
			die()
		}
	}
	ctx := context.Background()
	r, err := s.open(ctx, j.Config)
	if err != nil {
		return err
	}
	opened.Store(true)
	fmt.Println("open")
	o := j.do(ctx, r)
	o.Changes = changes.Load()
	return json.NewEncoder(os.Stdout).Encode(o)
}

// die ends this process at once and without any cleanup, as the kernel or a user would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// run does the job in a child. If the child has not ended by then, it is killed this long after it has opened the repository; 0:
// it is not killed.
func (j *job) run(tb testing.TB, s *site, after time.Duration) outcome {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "job")
	j.Site, j.Ahead = s.dir, time.Duration(s.ahead.Load())
	for i := range j.Disks {
		j.Disks[i].File = fmt.Sprintf("%s.%d", path, i)
		j.Disks[i].disk.save(tb, j.Disks[i].File)
		defer os.Remove(j.Disks[i].File)
	}
	data, err := json.Marshal(j)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), childTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childJob+"="+path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "open\n" {
		tb.Fatalf("the child: %q, %v: %s", line, errors.Join(err, cmd.Wait()), &stderr)
	}
	if after > 0 {
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
	}
	rest, read := io.ReadAll(out)
	err = cmd.Wait()
	if ctx.Err() != nil {
		tb.Fatalf("the child did not end in %s", childTimeout)
	}
	var o outcome
	if json.Unmarshal(rest, &o) == nil {
		return o
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		tb.Fatalf("the child: %v, %s%s", errors.Join(err, read), rest, &stderr)
	}
	return outcome{Killed: true}
}

// fileReader reads a disk from a file.
type fileReader struct{ path string }

func (r fileReader) ReadAt(_ context.Context, p []byte, offset int64) error {
	f, err := os.Open(r.path)
	if err != nil {
		return err
	}
	_, err = f.ReadAt(p, offset)
	return errors.Join(err, f.Close())
}

// jobReader reads as the job demands.
type jobReader struct {
	Reader
	job *job
}

func (r *jobReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	j := r.job
	time.Sleep(j.Slow)
	if j.Slept > 0 {
		j.once.Do(func() {
			j.site.move(j.Slept)
			time.Sleep(5 * j.Every) // so that there are flushes
		})
	}
	if j.Gate > 0 && offset >= j.Gate {
		j.gated.Store(true)
		<-ctx.Done()
	}
	return r.Reader.ReadAt(ctx, p, offset)
}
