package launcherclient

import (
	"slices"
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

// boundState cuts what a launcher reported down to the most that an honest one can report, so that a dishonest one
// cannot fill up other people's objects and memory.
func boundState(s *launcherpb.State) *launcherpb.State {
	s.Message = boundText(s.GetMessage(), maxText)
	s.Interfaces = firstParts(s.GetInterfaces(), maxParts)
	for _, i := range s.GetInterfaces() {
		i.Name, i.Mac, i.GuestName = boundText(i.GetName(), maxShort), boundText(i.GetMac(), maxShort), boundText(i.GetGuestName(), maxShort)
		i.Ips = boundTexts(i.GetIps())
	}
	if os := s.GetGuestOs(); os != nil {
		os.Id, os.Name, os.PrettyName = boundText(os.GetId(), maxShort), boundText(os.GetName(), maxShort), boundText(os.GetPrettyName(), maxShort)
		os.Version, os.KernelRelease = boundText(os.GetVersion(), maxShort), boundText(os.GetKernelRelease(), maxShort)
	}
	s.Disks = firstParts(s.GetDisks(), maxParts)
	for _, d := range s.GetDisks() {
		d.Volume, d.Target = boundText(d.GetVolume(), maxShort), boundText(d.GetTarget(), maxShort)
		d.OverlayRenewed, d.NotTracked = boundText(d.GetOverlayRenewed(), maxShort), boundText(d.GetNotTracked(), maxText)
	}
	s.Checkpoints = firstParts(s.GetCheckpoints(), maxPoints)
	s.StrayBitmaps = firstParts(s.GetStrayBitmaps(), maxPoints)
	for i := range s.GetStrayBitmaps() {
		s.StrayBitmaps[i] = boundText(s.StrayBitmaps[i], maxText)
	}
	boundBackup(s.GetBackup())
	if m := s.GetMigration(); m != nil {
		m.Uid, m.Message = boundText(m.GetUid(), maxShort), boundText(m.GetMessage(), maxText)
	}
	return s
}

func boundBackup(b *launcherpb.Backup) {
	if b == nil {
		return
	}
	b.Uid, b.Message, b.QuiesceMessage = boundText(b.GetUid(), maxShort), boundText(b.GetMessage(), maxText), boundText(b.GetQuiesceMessage(), maxText)
	if t := b.GetTunnel(); t != nil {
		t.Error = boundText(t.GetError(), maxText)
	}
	b.Volumes = firstParts(b.GetVolumes(), maxParts)
	for _, v := range b.GetVolumes() {
		v.Volume, v.File, v.Sha256 = boundText(v.GetVolume(), maxShort), boundText(v.GetFile(), maxText), boundText(v.GetSha256(), maxShort)
	}
}

// firstParts returns the first parts of all. Of a longer list it returns a copy, because the list would keep all its parts.
func firstParts[T any](all []T, most int) []T {
	if len(all) > most {
		return slices.Clone(all[:most])
	}
	return all
}

func boundTexts(all []string) []string {
	all = firstParts(all, maxParts)
	for i := range all {
		all[i] = boundText(all[i], maxShort)
	}
	return all
}

// boundText cuts s to at most n bytes, never inside a character.
func boundText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.Clone(strings.ToValidUTF8(s[:n], "")) // not a part of s, which would stay
}
