package launcher

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// State returns everything that is known now, and a channel that is closed at the next change.
func (l *Launcher) State() (*pb.State, <-chan struct{}) {
	frozen := l.isFrozen()
	l.mu.Lock()
	s := &pb.State{
		PullsBackups: true, OffersSingleVolumes: true,
		Phase: l.life.phase, End: l.life.end, Message: l.life.message,
		AgentConnected: l.info.AgentConnected && l.life.isUp(),
		Interfaces:     toInterfaces(l.info.Interfaces),
		GuestOs:        guestOS(l.info.GuestOS),
		Disks:          toDisks(l.info.Disks, l.start),
		Checkpoints:    toCheckpoints(l.checkpoints),
		StrayBitmaps:   l.strayBitmaps,
		Frozen:         frozen,
		Migration:      l.migration.toProto(),
	}
	job, changed := l.job, l.changed
	l.mu.Unlock()
	if job != nil {
		s.Backup = job.Snapshot()
	}
	return s, changed
}

func (l *Launcher) isFrozen() bool {
	select {
	case <-l.connected:
		return l.freezer != nil && l.freezer.Frozen()
	default:
		return false
	}
}

func toInterfaces(from []domain.Interface) []*pb.Interface {
	var out []*pb.Interface
	for _, i := range from {
		out = append(out, &pb.Interface{Name: i.Name, Mac: i.MAC, GuestName: i.GuestName, Ips: i.IPs, FromAgent: i.FromAgent})
	}
	return out
}

func guestOS(os *domain.GuestOS) *pb.GuestOS {
	if os == nil {
		return nil
	}
	return &pb.GuestOS{Id: os.ID, Name: os.Name, PrettyName: os.PrettyName, Version: os.Version, KernelRelease: os.KernelRelease}
}

// toDisks combines libvirt's data with why an overlay was renewed at this start.
func toDisks(from []domain.DiskInfo, s *start) []*pb.Disk {
	var out []*pb.Disk
	for _, d := range from {
		disk := &pb.Disk{Volume: d.Volume, Target: d.Target, VirtualBytes: d.VirtualBytes, Tracked: d.Tracked}
		if s != nil {
			disk.OverlayRenewed, disk.NotTracked = string(s.renewed[d.Volume]), s.untracked[d.Volume]
		}
		out = append(out, disk)
	}
	return out
}

func toCheckpoints(from []domain.Checkpoint) []*pb.Checkpoint {
	var out []*pb.Checkpoint
	for _, c := range from {
		out = append(out, &pb.Checkpoint{Name: c.Name, CreationTime: timestamppb.New(c.CreationTime), Volumes: c.Volumes})
	}
	return out
}
