package launcherclient

import (
	"strings"

	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// Limits of what a launcher may report. The API's own limits are 64 disks and one network.
const (
	maxParts  = 64
	maxText   = 1 << 10
	maxShort  = 128
	maxPoints = 1 << 10
)

// bound cuts what a launcher reported down to the most that an honest one can report, so that a dishonest one
// cannot fill up other people's objects and memory.
func bound(s *launcherpb.State) *launcherpb.State {
	s.Message = text(s.GetMessage(), maxText)
	s.Interfaces = parts(s.GetInterfaces(), maxParts)
	for _, i := range s.GetInterfaces() {
		i.Name, i.Mac, i.GuestName = text(i.GetName(), maxShort), text(i.GetMac(), maxShort), text(i.GetGuestName(), maxShort)
		i.Ips = texts(i.GetIps())
	}
	if os := s.GetGuestOs(); os != nil {
		os.Id, os.Name, os.PrettyName = text(os.GetId(), maxShort), text(os.GetName(), maxShort), text(os.GetPrettyName(), maxShort)
		os.Version, os.KernelRelease = text(os.GetVersion(), maxShort), text(os.GetKernelRelease(), maxShort)
	}
	s.Disks = parts(s.GetDisks(), maxParts)
	for _, d := range s.GetDisks() {
		d.Volume, d.Target = text(d.GetVolume(), maxShort), text(d.GetTarget(), maxShort)
		d.OverlayRenewed, d.NotTracked = text(d.GetOverlayRenewed(), maxShort), text(d.GetNotTracked(), maxText)
	}
	if len(s.GetCheckpoints()) > maxPoints {
		s.Checkpoints = s.GetCheckpoints()[:maxPoints]
	}
	s.StrayBitmaps = parts(s.GetStrayBitmaps(), maxPoints)
	for i := range s.GetStrayBitmaps() {
		s.StrayBitmaps[i] = text(s.StrayBitmaps[i], maxText)
	}
	boundBackup(s.GetBackup())
	return s
}

func boundBackup(b *launcherpb.Backup) {
	if b == nil {
		return
	}
	b.Uid, b.Message, b.QuiesceMessage = text(b.GetUid(), maxShort), text(b.GetMessage(), maxText), text(b.GetQuiesceMessage(), maxText)
	b.Volumes = parts(b.GetVolumes(), maxParts)
	for _, v := range b.GetVolumes() {
		v.Volume, v.File, v.Sha256 = text(v.GetVolume(), maxShort), text(v.GetFile(), maxText), text(v.GetSha256(), maxShort)
	}
}

func parts[T any](all []T, most int) []T {
	if len(all) > most {
		return all[:most]
	}
	return all
}

func texts(all []string) []string {
	all = parts(all, maxParts)
	for i := range all {
		all[i] = text(all[i], maxShort)
	}
	return all
}

// text cuts s to at most n bytes, never inside a character.
func text(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
