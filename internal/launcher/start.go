package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/push"
	"github.com/varvebackup/varve/internal/launcher/rawdisk"
	"github.com/varvebackup/varve/internal/tracking"
)

const (
	// startTimeout bounds a start, overlays included.
	startTimeout = 5 * time.Minute
	// defaultGrace is terminationGracePeriodSeconds' default.
	defaultGrace = 180 * time.Second
)

// start is the one start of the guest. Its fields but done are valid once done is closed; disks from then on never change.
type start struct {
	done    chan struct{}
	err     error
	grace   time.Duration
	disks   map[string]push.Disk
	renewed map[string]domain.Renewed
	// tracked maps volumes with an overlay to their raw disks. Set when the overlays were marked as started.
	tracked map[string]string
}

// begin starts the guest, once, and goes on whatever becomes of the caller.
func (l *Launcher) begin(req *pb.StartRequest) *start {
	var begun *start
	l.change(func() {
		if l.start != nil || l.life.ended() {
			return
		}
		l.start = &start{done: make(chan struct{}), grace: defaultGrace}
		l.life = l.life.starting()
		begun = l.start
	})
	if begun == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.start
	}
	l.work.Go(func() { l.runStart(begun, req) })
	return begun
}

func (l *Launcher) runStart(s *start, req *pb.StartRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.err = l.startGuest(ctx, s, req)
	if s.err != nil {
		l.change(func() { l.life = l.life.startFailed(s.err) })
	} else {
		l.change(func() { l.life = l.life.started() })
		l.wakeRefresher()
	}
	close(s.done)
}

func (l *Launcher) startGuest(ctx context.Context, s *start, req *pb.StartRequest) error {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := json.Unmarshal(req.Instance, vmi); err != nil {
		return fmt.Errorf("read the instance: %w", err)
	}
	if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
		s.grace = time.Duration(*seconds) * time.Second
	}
	disks, err := l.prepareDisks(ctx, s, vmi, req)
	if err != nil {
		return err
	}
	xml, err := domain.DomainXML(vmi, l.options(vmi, req, disks))
	if err != nil {
		return err
	}
	select {
	case <-l.connected:
	case <-ctx.Done():
		return fmt.Errorf("wait for libvirt: %w", ctx.Err())
	}
	if l.guest == nil {
		return errors.New("libvirt could not be reached")
	}
	if err := l.markStarted(s, disks); err != nil {
		return err
	}
	return l.guest.Start(ctx, xml)
}

func (l *Launcher) options(vmi *kubevirtv1.VirtualMachineInstance, req *pb.StartRequest, disks []domain.Disk) domain.Options {
	opts := domain.Options{UseEmulation: req.UseEmulation, Disks: disks, SerialLog: l.cfg.SerialLog}
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		if firmware.KernelBoot.Container.KernelPath != "" {
			opts.KernelPath = l.cfg.Paths.Kernel
		}
		if firmware.KernelBoot.Container.InitrdPath != "" {
			opts.InitrdPath = l.cfg.Paths.Initrd
		}
	}
	return opts
}

// prepareDisks makes every volume's raw disk ready, and the overlays of those that are to be tracked.
func (l *Launcher) prepareDisks(ctx context.Context, s *start, vmi *kubevirtv1.VirtualMachineInstance, req *pb.StartRequest) ([]domain.Disk, error) {
	var eligible []string
	if req.ChangedBlockTracking {
		eligible = tracking.EligibleVolumes(&vmi.Spec)
	}
	if len(eligible) > 0 {
		if err := makeOverlayDir(l.cfg.Paths.OverlayDir); err != nil {
			return nil, err
		}
	}
	known, renewed := map[string]push.Disk{}, map[string]domain.Renewed{}
	var disks []domain.Disk
	for _, v := range vmi.Spec.Volumes {
		i := slices.IndexFunc(req.Disks, func(d *pb.DiskSource) bool { return d.Volume == v.Name })
		if i < 0 {
			return nil, fmt.Errorf("volume %s has no disk source", v.Name)
		}
		source := req.Disks[i]
		disk, size, err := l.rawDisk(source)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		tracked := slices.Contains(eligible, v.Name)
		if tracked {
			id := domain.Identity{ClaimUID: source.ClaimUid, ContentGeneration: source.ContentGeneration, VirtualBytes: size}
			if renewed[v.Name], err = l.cfg.Overlays.Prepare(ctx, v.Name, disk.RawPath, id); err != nil {
				return nil, err
			}
			disk.Overlay = l.cfg.Overlays.Path(v.Name)
		}
		disks = append(disks, disk)
		known[v.Name] = push.Disk{RawPath: disk.RawPath, VirtualBytes: size, Tracked: tracked}
	}
	l.change(func() { s.disks, s.renewed = known, renewed })
	return disks, nil
}

// rawDisk makes a volume's raw disk ready and returns its size in bytes.
func (l *Launcher) rawDisk(source *pb.DiskSource) (domain.Disk, int64, error) {
	disk := domain.Disk{Volume: source.Volume, Block: source.Block}
	var err error
	if source.Block {
		disk.RawPath = l.cfg.Paths.DiskDevice(source.Volume)
		err = rawdisk.EnsureDevice(disk.RawPath)
	} else {
		disk.RawPath = l.cfg.Paths.DiskFile(source.Volume)
		err = rawdisk.EnsureFile(disk.RawPath)
	}
	if err != nil {
		return disk, 0, err
	}
	size, err := domain.DiskSize(disk.RawPath)
	return disk, size, err
}

// markStarted takes back that the overlays are clean. From here on only markClean can say so again.
func (l *Launcher) markStarted(s *start, disks []domain.Disk) error {
	var volumes []string
	tracked := map[string]string{}
	for _, d := range disks {
		if d.Overlay != "" {
			volumes = append(volumes, d.Volume)
			tracked[d.Volume] = d.RawPath
		}
	}
	if len(volumes) == 0 {
		return nil
	}
	if err := l.cfg.Overlays.MarkStarted(volumes); err != nil {
		return err
	}
	l.change(func() { s.tracked = tracked })
	return nil
}

// markClean marks the overlays as clean, after a clean end only.
func (l *Launcher) markClean() error {
	l.mu.Lock()
	state, s, stopped := l.life, l.start, l.stop
	l.mu.Unlock()
	if s == nil || len(s.tracked) == 0 || !state.clean() {
		return nil
	}
	if stopped != nil && stopped.mayBeDirty() {
		return errors.New("QEMU may have been killed before it closed its disks")
	}
	return l.cfg.Overlays.MarkClean(s.tracked)
}

// makeOverlayDir makes the directory of the overlays. The state volume that it is on must be there.
func makeOverlayDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("changed block tracking needs the state volume: %w", err)
	}
	return nil
}

// grace is how long the guest has to shut down when nobody says otherwise.
func (l *Launcher) grace() time.Duration {
	l.mu.Lock()
	s := l.start
	l.mu.Unlock()
	if s == nil {
		return 0
	}
	select {
	case <-s.done:
		return s.grace
	default:
		return defaultGrace
	}
}
