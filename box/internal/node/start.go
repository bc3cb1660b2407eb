package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/varvebackup/varve/box/internal/proc"
)

// goFD is the descriptor from which init reads its Spec.
const goFD = 3

// Start clones the node's init, lets prepare equip it (network device, control group, record of its identity), and
// then sends it the Spec. If prepare fails, or if the caller dies before that, init ends without having done anything.
func Start(ctx context.Context, spec Spec, prepare func(proc.ID) error) (id proc.ID, err error) {
	log, err := openLog(spec.Layout().Log("init"))
	if err != nil {
		return proc.ID{}, err
	}
	defer log.Close() //nolint:errcheck // init has its own descriptor
	r, w, err := os.Pipe()
	if err != nil {
		return proc.ID{}, fmt.Errorf("start %s: %w", spec.Layout().Name, err)
	}
	defer w.Close() //nolint:errcheck // closing it twice is harmless: the send below reports its own close
	//nolint:noctx // the node outlives the call
	cmd := exec.Command(spec.Dir.Program("box"), "node-enter")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{r}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	err = errors.Join(err, r.Close())
	if err != nil {
		return proc.ID{}, fmt.Errorf("start %s: %w", spec.Layout().Name, err)
	}
	go cmd.Wait() //nolint:errcheck // only reaps: the node outlives this process, and Alive tells its state
	if id, err = proc.Of(cmd.Process.Pid); err != nil {
		return proc.ID{}, err
	}
	if err := prepare(id); err != nil {
		return proc.ID{}, errors.Join(err, id.Kill(ctx))
	}
	data, err := json.Marshal(spec)
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return proc.ID{}, errors.Join(fmt.Errorf("start %s: %w", spec.Layout().Name, err), id.Kill(ctx))
	}
	return id, nil
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
}
