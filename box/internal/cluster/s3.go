package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/cgroup"
	"github.com/varvebackup/varve/box/internal/hostnet"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/proc"
	"github.com/varvebackup/varve/box/internal/s3"
)

// S3Program is the name of the S3 service's program in the box.
const S3Program = "versitygw"

// s3Process records the process of the S3 service.
type s3Process struct {
	Process proc.ID `json:"process"`
	// Started is a digest of what the process was started with.
	Started string `json:"started"`
}

// S3Up makes the S3 service beside a box run, whatever existed before. versitygw is where its program comes from, and self is
// this program. The service outlives `box up`, and ends with `box down`, which kills everything in the box's control group.
func S3Up(ctx context.Context, dir layout.Box, versitygw, self string, p *Progress) error {
	unlock, st, err := lockExisting(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := hostnet.EnsureBridge(st.Bridge, string(dir), st.Plan); err != nil { // it is gone after a reset of the machine
		return err
	}
	if err := os.MkdirAll(dir.Bin(), 0o755); err != nil {
		return err
	}
	if _, err := installFile(versitygw, dir.Program(S3Program)); err != nil {
		return fmt.Errorf("install %s from %s: %w (`make peers` builds it)", S3Program, versitygw, err)
	}
	service, err := s3.Open(dir, st.Plan.Bridge().Addr(), time.Now())
	if err != nil {
		return err
	}
	if err := ensureS3(ctx, dir, service, self, p); err != nil {
		return err
	}
	if err := service.EnsureBuckets(ctx, dir.Program(S3Program)); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(dir.S3Description(), service.Description, 0o644); err != nil {
		return err
	}
	p.Say("the S3 service is at %s, with the buckets %s and %s: see %s", service.Endpoint, s3.Bucket, s3.LockedBucket, dir.S3Description())
	return nil
}

// S3Down ends the S3 service, and removes its data and everything else of it.
func S3Down(ctx context.Context, dir layout.Box, p *Progress) error {
	unlock, _, err := lockExisting(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := stopS3(ctx, dir); err != nil {
		return err
	}
	for _, path := range []string{dir.S3Description(), dir.S3(), dir.Program(S3Program)} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove the S3 service: %w", err)
		}
	}
	p.Say("the S3 service is gone")
	return nil
}

// lockExisting is lockBox for a box that must be there.
func lockExisting(ctx context.Context, dir layout.Box) (unlock func(), st *State, err error) {
	if _, err := loadState(dir); err != nil {
		return nil, nil, err
	}
	if unlock, err = lockBox(ctx, dir, false); err != nil {
		return nil, nil, err
	}
	if st, err = loadState(dir); err != nil { // another command may have removed it meanwhile
		unlock()
	}
	return unlock, st, err
}

// ensureS3 starts the service unless it runs and answers, with the current program, certificate and keys.
func ensureS3(ctx context.Context, dir layout.Box, service *s3.Service, self string, p *Progress) error {
	wanted, err := s3Started(dir, service)
	if err != nil {
		return err
	}
	record, err := loadS3Process(dir)
	if err == nil && record.Started == wanted && record.Process.Alive() && service.Healthy(ctx) == nil {
		return nil
	}
	if err := stopS3(ctx, dir); err != nil {
		return err
	}
	p.Say("starting the S3 service")
	id, err := startS3(dir, service, self)
	if err != nil {
		return fmt.Errorf("start the S3 service: %w", err)
	}
	if err := atomicfile.WriteJSON(dir.S3Process(), s3Process{Process: id, Started: wanted}, 0o600); err != nil {
		return err
	}
	return awaitCheck(ctx, "the S3 service to answer", time.Minute, dir.S3Log(), func(ctx context.Context) error {
		err := service.Healthy(ctx)
		if err != nil && !id.Alive() {
			err = giveUpError{fmt.Errorf("it has ended: %w", err)}
		}
		return err
	})
}

// s3Started returns the digest of what the service is to be started with.
func s3Started(dir layout.Box, service *s3.Service) (string, error) {
	program, err := fileDigest(dir.Program(S3Program))
	if err != nil {
		return "", err
	}
	secrets, err := service.Secrets()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%x %q %q", program, service.Arguments(), secrets))), nil
}

// loadS3Process returns a process that is not alive if the record is damaged: who is in the control group is then killed all the same.
func loadS3Process(dir layout.Box) (s3Process, error) {
	var record s3Process
	data, err := os.ReadFile(dir.S3Process())
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	return record, err
}

// startS3 starts the service's process. It is in its control group before it is the service, so that it can be found even if nothing records it.
func startS3(dir layout.Box, service *s3.Service, self string) (proc.ID, error) {
	log, err := os.OpenFile(dir.S3Log(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return proc.ID{}, err
	}
	defer log.Close() //nolint:errcheck // the service has its own descriptor
	//nolint:noctx // the service outlives the call
	cmd := exec.Command(self, append([]string{"s3", "run", "--dir", string(dir), "--"}, service.Arguments()...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = log, log, "/", service.Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return proc.ID{}, err
	}
	go cmd.Wait() //nolint:errcheck // only reaps: the service outlives this process, and Alive tells its state
	return proc.Of(cmd.Process.Pid)
}

// S3Run makes this process the service: a member of its control group, with the program's arguments.
func S3Run(dir layout.Box, arguments []string) error {
	if err := cgroup.Create(dir.S3Cgroup(), os.Getpid()); err != nil {
		return err
	}
	program := dir.Program(S3Program)
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, append([]string{program}, arguments...), os.Environ()))
}

// stopS3 ends the service's process: the recorded one, and whatever else is in its control group.
func stopS3(ctx context.Context, dir layout.Box) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	record, err := loadS3Process(dir)
	if err == nil {
		err = record.Process.Kill(ctx)
	} else {
		err = nil // there is none, or it is damaged
	}
	if err := errors.Join(err, cgroup.Remove(ctx, dir.S3Cgroup(), killProcess)); err != nil {
		return fmt.Errorf("stop the S3 service: %w", err)
	}
	return nil
}
