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
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/rawdisk"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

const (
	// startTimeout bounds a start, overlays included.
	startTimeout = 5 * time.Minute
	// moveTimeout bounds how long overlays may take to get into a larger claim. The disks of those that have not moved by
	// then get new ones.
	moveTimeout = 3 * time.Minute
	// sectorBytes divides the size of every disk that can be tracked.
	sectorBytes = 512
	// defaultGrace is the default of terminationGracePeriodSeconds.
	defaultGrace = 30 * time.Second
)

// start is the one start of the guest. Its fields other than done are valid once done is closed. After that, disks never change.
type start struct {
	done    chan struct{}
	err     error
	grace   time.Duration
	disks   map[string]backupjob.Disk
	renewed map[string]domain.Renewed
	// untracked says why volumes are not tracked although they should be.
	untracked map[string]string
	// tracked are the volumes with an overlay. It is set before the overlays are marked as started.
	tracked map[string]domain.Opened
}

// beginStart starts the guest, once. The start continues no matter what happens to the caller.
func (l *Launcher) beginStart(req *pb.StartRequest) *start {
	var begun *start
	l.changeState(func() {
		if l.start != nil || l.life.hasEnded() || l.migration != nil {
			return
		}
		l.start = &start{done: make(chan struct{}), grace: defaultGrace}
		l.life = l.life.afterStartCall()
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
		l.changeState(func() { l.life = l.life.startFailed(s.err) })
	} else {
		l.changeState(func() { l.life = l.life.afterStart() })
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
	xml, err := domain.DomainXML(vmi, l.domainOptions(vmi, req, disks))
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
	if err := l.markStarted(s, disks, req); err != nil {
		return errors.Join(err, l.markNotStarted(s))
	}
	if err := l.guest.Start(ctx, xml); err != nil {
		if ctx.Err() != nil {
			return err // libvirt may still be starting it, so the disks may still be opened
		}
		return errors.Join(err, l.markNotStarted(s))
	}
	return nil
}

// markNotStarted restores the marks of the overlays if the guest could not be started.
func (l *Launcher) markNotStarted(s *start) error {
	if len(s.tracked) == 0 {
		return nil
	}
	return l.cfg.Overlays.MarkNotStarted(s.tracked)
}

func (l *Launcher) domainOptions(vmi *kubevirtv1.VirtualMachineInstance, req *pb.StartRequest, disks []domain.Disk) domain.Options {
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

// prepareDisks makes every volume's raw disk ready, and the overlays of the volumes that are to be tracked.
func (l *Launcher) prepareDisks(ctx context.Context, s *start, vmi *kubevirtv1.VirtualMachineInstance, req *pb.StartRequest) ([]domain.Disk, error) {
	var eligible []string
	if req.ChangedBlockTracking {
		eligible = tracking.EligibleVolumes(&vmi.Spec)
	}
	notMoved, err := l.takeOverlays(ctx, req, eligible)
	if err != nil {
		return nil, err
	}
	// This must come before Retain removes anything that knows about a disk.
	if err := l.refuseLostDisks(req); err != nil {
		return nil, err
	}
	if len(eligible) > 0 {
		if err := l.cfg.Overlays.Retain(eligible); err != nil {
			return nil, err
		}
	}
	known, renewed, untracked := map[string]backupjob.Disk{}, map[string]domain.Renewed{}, map[string]string{}
	var disks []domain.Disk
	var errs []error
	for _, v := range vmi.Spec.Volumes {
		i := slices.IndexFunc(req.Disks, func(d *pb.DiskSource) bool { return d.Volume == v.Name })
		if i < 0 {
			return nil, fmt.Errorf("volume %s has no disk source", v.Name)
		}
		source := req.Disks[i]
		tracked := slices.Contains(eligible, v.Name)
		disk, size, err := l.rawDisk(source)
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
			continue
		}
		if tracked && size%sectorBytes != 0 {
			tracked = false
			if err := l.cfg.Overlays.LetGo(v.Name); err != nil {
				errs = append(errs, err)
				continue
			}
			untracked[v.Name] = cannotTrack(v.Name, size)
		}
		if tracked {
			id := domain.Identity{ClaimUID: source.ClaimUid, ContentGeneration: source.ContentGeneration, VirtualBytes: size}
			run := domain.Run{ID: source.Run, Previous: source.PreviousRun}
			if renewed[v.Name], err = l.cfg.Overlays.Prepare(ctx, v.Name, disk.RawPath, id, run); err != nil {
				errs = append(errs, err)
				continue
			}
			if notMoved[v.Name] != nil && renewed[v.Name] == domain.NewOverlay {
				renewed[v.Name] = domain.NotMoved
			}
			disk.Overlay = l.cfg.Overlays.Path(v.Name)
		}
		disks = append(disks, disk)
		known[v.Name] = backupjob.Disk{RawPath: disk.RawPath, VirtualBytes: size, Tracked: tracked}
	}
	l.changeState(func() { s.disks, s.renewed, s.untracked = known, renewed, untracked })
	return disks, errors.Join(errs...)
}

// cannotTrack says why a disk is not tracked.
func cannotTrack(volume string, size int64) string {
	return fmt.Sprintf("the disk of volume %s has %d bytes, which is no multiple of %d, so that QEMU cannot track it: "+
		"it is in no backup. "+
		"Stop the machine, grow the disk to a multiple of %d bytes, and start it again",
		volume, size, sectorBytes, sectorBytes)
}

// takeOverlays gets the overlays of the eligible volumes, of which there may be none, to their place and hands them on to this
// run. It returns why some could not be moved.
func (l *Launcher) takeOverlays(ctx context.Context, req *pb.StartRequest, eligible []string) (notMoved map[string]error, err error) {
	if len(eligible) == 0 {
		return nil, nil
	}
	if err := makeOverlayDir(l.cfg.Paths.OverlayDir); err != nil {
		return nil, err
	}
	if notMoved, err = l.moveOverlays(ctx, req, eligible); err != nil {
		return nil, err
	}
	return notMoved, l.handOn(req, eligible)
}

// moveOverlays moves the overlays away from the claim that is too small for them, if there is one. It returns why some could not
// be moved: their disks get new ones, because a start must not fail for them.
func (l *Launcher) moveOverlays(ctx context.Context, req *pb.StartRequest, eligible []string) (map[string]error, error) {
	if _, err := os.Stat(l.cfg.Paths.PreviousOverlayDir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	owners := map[string]domain.Owner{}
	for _, source := range req.Disks {
		if slices.Contains(eligible, source.Volume) {
			owners[source.Volume] = domain.Owner{ClaimUID: source.ClaimUid, Run: domain.Run{ID: source.Run, Previous: source.PreviousRun}}
		}
	}
	lost, err := l.cfg.Overlays.MoveFrom(ctx, l.cfg.Paths.PreviousOverlayDir, owners)
	for volume, why := range lost {
		l.cfg.Log.Warn("the overlay could not be moved to the larger claim: the next backup of the disk is full", "volume", volume, "error", why)
	}
	return lost, err
}

// handOn hands every overlay on to this run, before anything that can fail: a failed start must not cost any disk its base.
func (l *Launcher) handOn(req *pb.StartRequest, eligible []string) error {
	for _, source := range req.Disks {
		if !slices.Contains(eligible, source.Volume) {
			continue
		}
		if err := l.cfg.Overlays.HandOn(source.Volume, source.ClaimUid, domain.Run{ID: source.Run, Previous: source.PreviousRun}); err != nil {
			return err
		}
	}
	return nil
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

// refuseLostDisks looks for disks that the claims, or the overlays of a tracked machine, know about but that are missing.
func (l *Launcher) refuseLostDisks(req *pb.StartRequest) error {
	var errs []error
	for _, source := range req.Disks {
		if source.Block {
			continue
		}
		if err := l.refuseLostDisk(source, l.cfg.Paths.DiskFile(source.Volume), req.ChangedBlockTracking); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", source.Volume, err))
		}
	}
	return errors.Join(errs...)
}

// refuseLostDisk returns an error if the claim has no disk but is known to have had one. A blank disk in its place would hide the loss.
func (l *Launcher) refuseLostDisk(source *pb.DiskSource, path string, tracked bool) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return nil // whoever opens the disk finds any other problem with it
	}
	had := ""
	if source.HadDisk {
		had = "a disk"
	}
	if tracked {
		size, err := l.cfg.Overlays.DiskOf(source.ClaimUid, source.ContentGeneration)
		if err != nil {
			return err
		}
		if size > 0 {
			had = fmt.Sprintf("a disk of %d bytes", size)
		}
	}
	if had == "" {
		return nil
	}
	return fmt.Errorf("%w: its claim had %s when a machine ran on it last and has no disk.img now; see whether the volume is mounted as it should be (an NFS export may be missing). "+
		"To start with a blank disk, set the annotation %s of the claim to another value", rawdisk.ErrUnusable, had, layout.AnnotationContentGeneration)
}

// markStarted withdraws the mark that the overlays are clean. From here on only markClean or markNotStarted can restore it.
func (l *Launcher) markStarted(s *start, disks []domain.Disk, req *pb.StartRequest) error {
	runs := map[string]string{}
	for _, source := range req.Disks {
		runs[source.Volume] = source.Run
	}
	var volumes []string
	tracked := map[string]domain.Opened{}
	for _, d := range disks {
		if d.Overlay != "" {
			volumes = append(volumes, d.Volume)
			tracked[d.Volume] = domain.Opened{RawPath: d.RawPath, Run: runs[d.Volume]}
		}
	}
	if len(volumes) == 0 {
		return nil
	}
	l.changeState(func() { s.tracked = tracked })
	return l.cfg.Overlays.MarkStarted(volumes)
}

// markClean marks the overlays as clean, but only after a clean end.
func (l *Launcher) markClean() error {
	l.mu.Lock()
	state, s, stopped := l.life, l.start, l.stop
	l.mu.Unlock()
	if s == nil || len(s.tracked) == 0 || !state.endedClean() {
		return nil
	}
	if stopped != nil && stopped.mayBeDirty() {
		return errors.New("QEMU may have been killed before it closed its disks")
	}
	return l.cfg.Overlays.MarkClean(s.tracked)
}

// makeOverlayDir creates the directory of the overlays. Its state volume must exist.
func makeOverlayDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("changed block tracking needs the state volume: %w", err)
	}
	return nil
}

// gracePeriod returns how long the guest has to shut down if nobody says otherwise.
func (l *Launcher) gracePeriod() time.Duration {
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
