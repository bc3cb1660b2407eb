package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/internal/store/scrub"
)

// ScrubOptions say how the images on the disks are read: see scrub.Options.
type ScrubOptions struct {
	BytesPerSecond int64
	Interval       time.Duration
}

var _ scrub.Copies = (*agent)(nil)

// Reasons of events on images.
const (
	// reasonCopyDamaged: a copy is not what was sealed, or cannot be read. Nobody reads or clones it until it is repaired.
	reasonCopyDamaged = "CopyDamaged"
	// reasonCopyRepaired: what was wrong in a copy was replaced.
	reasonCopyRepaired = "CopyRepaired"
	// reasonCopyNotRepaired: a damaged copy stays as it is for now. The message says why.
	reasonCopyNotRepaired = "CopyNotRepaired"
)

// NoteRepair implements [scrub.Copies].
func (a *agent) NoteRepair(ctx context.Context, c peer.Copy, pieces int, err error) {
	if err != nil {
		a.recordEvent(ctx, c, corev1.EventTypeWarning, reasonCopyNotRepaired, "Repair",
			a.describePlace(c)+" is damaged and not repaired yet: "+err.Error())
		return
	}
	a.recordEvent(ctx, c, corev1.EventTypeNormal, reasonCopyRepaired, "Repair",
		fmt.Sprintf("%s is repaired: %d MiB were replaced with those of other copies", a.describePlace(c), pieces))
}

// describePlace says which copy is meant, for somebody who knows the image.
func (a *agent) describePlace(c peer.Copy) string {
	name := c.DiskUUID
	if d, err := a.Disks.Find(disk.UID(c.DiskUUID)); err == nil {
		name = d.Name
	}
	return fmt.Sprintf("the copy on disk %s of node %s", name, a.Node)
}

// recordEvent records an event on the image of a copy, if the image still exists.
func (a *agent) recordEvent(ctx context.Context, c peer.Copy, kind, reason, action, note string) {
	image := &longhornv1.BackingImage{}
	key := client.ObjectKey{Namespace: a.Namespace, Name: c.Image}
	if a.Events == nil || a.cached.Get(ctx, key, image) != nil || image.Status.UUID != c.UUID {
		return
	}
	a.Events.Eventf(image, nil, kind, reason, action, "%s", note)
}

// CanRepair implements [scrub.Copies]. What cannot be found out counts as no.
func (a *agent) CanRepair(ctx context.Context, c peer.Copy) (wanted bool, others scrub.Others) {
	image := &longhornv1.BackingImage{}
	if err := a.cached.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: c.Image}, image); err != nil {
		return false, scrub.NoOthers
	}
	_, listed := image.Spec.DiskFileSpecMap[c.DiskUUID]
	wanted = listed && image.Status.UUID == c.UUID && image.DeletionTimestamp == nil
	switch {
	case !wanted:
	case len(readyDisks(image, c.DiskUUID)) > 0:
		others = scrub.ReadyOthers
	case len(disksToRepairFrom(image, c.DiskUUID)) > 0:
		others = scrub.DamagedOthers
	}
	return wanted, others
}

// disksToRepairFrom returns the disks beside one that may have good pieces of an image. Two copies that are damaged
// repair each other unless the same piece is wrong in both.
func disksToRepairFrom(image *longhornv1.BackingImage, except string) (disks []string) {
	ready := readyDisks(image, except)
	for uuid, copied := range image.Status.DiskFileStatusMap {
		if uuid != except && copied != nil && copied.State != longhornv1.StatePending && !slices.Contains(ready, uuid) {
			disks = append(disks, uuid)
		}
	}
	slices.Sort(ready)
	slices.Sort(disks)
	return append(ready, disks...)
}

// FetchPiece implements [scrub.Copies]. It asks each copy once, those that are ready first.
func (a *agent) FetchPiece(ctx context.Context, c peer.Copy, piece int, p []byte) error {
	image := &longhornv1.BackingImage{}
	if err := a.cached.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: c.Image}, image); err != nil {
		return fmt.Errorf("read the BackingImage %s: %w", c.Image, err)
	}
	candidates := disksToRepairFrom(image, c.DiskUUID)
	if image.Status.UUID != c.UUID || len(candidates) == 0 {
		return errclass.Errorf(errclass.Transient, "no other disk has a copy of %s that is ready: make one more", c.Image)
	}
	var managers longhornv1.InstanceManagerList
	if err := a.live.List(ctx, &managers, client.InNamespace(a.Namespace)); err != nil {
		return fmt.Errorf("find the stores of the copies: %w", err)
	}
	var all error
	for _, uuid := range candidates {
		from := peer.Copy{Image: c.Image, UUID: c.UUID, DiskUUID: uuid}
		err := a.readPiece(ctx, managers.Items, from, piece, p)
		if err == nil || ctx.Err() != nil {
			return err
		}
		all = errors.Join(all, err)
	}
	return all
}

// readPiece reads a piece of another copy, here or from the store that reports it.
func (a *agent) readPiece(
	ctx context.Context, managers []longhornv1.InstanceManager, from peer.Copy, piece int, p []byte,
) error {
	ctx, cancel := context.WithTimeout(ctx, pieceTimeout)
	defer cancel()
	if d, err := a.Disks.Find(disk.UID(from.DiskUUID)); err == nil {
		err = d.ReadPiece(ctx, names.Image(from.Image, from.UUID), disk.UID(from.UUID), piece, p)
		if errors.Is(err, errclass.Corrupt) { // it may be news that the copy is damaged
			a.NoteDamage(context.WithoutCancel(ctx), from, err.Error())
		}
		return err
	}
	for i := range managers {
		s := &managers[i].Status
		_, reported := s.BackingImages[copyKey{from.DiskUUID, from.UUID}.String()]
		if reported && s.IP != "" && managers[i].Name != a.Node && s.CurrentState == longhornv1.ManagerRunning {
			return peer.ReadPiece(ctx, s.IP, a.Port, a.TLSDir, from, piece, p)
		}
	}
	return errclass.Errorf(errclass.Transient, "no store has reported the copy on disk %s within %s", from.DiskUUID,
		longhornv1.ReportTimeout)
}

// scrubStatus returns what the scrub knows of a disk, or nil.
func (a *agent) scrubStatus(d *openDisk) *scrub.Status {
	if a.scrubber == nil {
		return nil
	}
	status, ok := a.scrubber.Status(d.UUID)
	if !ok {
		return nil
	}
	return &status
}

// describeScrub fills in what the scrub knows of a disk. Without that, what was known stays.
func (a *agent) describeScrub(status *longhornv1.DiskStatus, s *scrub.Status) {
	if s == nil {
		return
	}
	if status.ScrubProgress = 0; s.GoesOn {
		status.ScrubProgress = s.Percent
	}
	status.LastScrubTime = nil
	if !s.LastEnded.IsZero() {
		at := metav1.NewTime(s.LastEnded.Truncate(time.Second))
		status.LastScrubTime = &at
	}
	c := metav1.Condition{
		Type: longhornv1.ConditionVolumesIntact, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonNoDamageKnown,
		LastTransitionTime: metav1.NewTime(a.Clock.Now()),
	}
	if len(s.Shares) > 0 || s.Omitted {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, longhornv1.ReasonDamageShared, describeShares(s)
	}
	meta.SetStatusCondition(&status.Conditions, c)
}

// describeShares says which volumes have wrong blocks.
func describeShares(s *scrub.Status) string {
	var all []string
	for _, x := range s.Shares {
		name := string(x.Object)
		if handle, ok := names.IsHead(x.Object); ok {
			name = "volume " + handle
		}
		all = append(all, fmt.Sprintf(
			"%s has %d bytes at offset %d that are or may be wrong, from a damaged copy of image %s", name, x.Bytes(),
			x.Offset(), x.Image))
	}
	slices.Sort(all)
	text := strings.Join(all[:min(len(all), names.MaxListed)], "; ")
	if more := len(all) - names.MaxListed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if len(all) > 0 {
		text += ": restore them from backups. A volume leaves this list when it has overwritten these bytes, or is deleted"
	}
	if s.Omitted {
		text = "There were more volumes than can be listed, or the list was damaged (scrub.json.damaged on the disk is it " +
			"then), so others on this disk may have wrong bytes, too: restore those that are clones of the images named in the " +
			"store's log. " + text
	}
	return shortenMessage(text)
}
