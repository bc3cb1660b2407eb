//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/varvebackup/varve/internal/errclass"
)

// Checkpoints returns the checkpoints that libvirt knows, with the disks that each is defined on, and the names of
// the overlays' bitmaps that belong to none of them. It does not say whether a bitmap is usable: Redefine and DirtyBytes do.
func (s *Session) Checkpoints(ctx context.Context) (known []Checkpoint, stray []string, err error) {
	err = s.withDomain(ctx, "list checkpoints", func(d *libvirt.Domain) error {
		disks, bitmaps, err := bitmapsOf(d)
		if err != nil {
			return err
		}
		known, err = listCheckpoints(d, disks)
		stray = strayBitmaps(bitmaps, known)
		return err
	})
	return known, stray, err
}

func listCheckpoints(d *libvirt.Domain, disks diskMap) ([]Checkpoint, error) {
	all, err := d.ListAllCheckpoints(libvirt.DOMAIN_CHECKPOINT_LIST_TOPOLOGICAL)
	if err != nil {
		return nil, err
	}
	var out []Checkpoint
	for i := range all {
		cp, e := readCheckpoint(&all[i], disks)
		err = errors.Join(err, e, all[i].Free())
		out = append(out, cp)
	}
	return out, err
}

func readCheckpoint(c *libvirt.DomainCheckpoint, disks diskMap) (Checkpoint, error) {
	xml, err := c.GetXMLDesc(libvirt.DOMAIN_CHECKPOINT_XML_NO_DOMAIN)
	if err != nil {
		return Checkpoint{}, err
	}
	var doc libvirtxml.DomainCheckpoint
	if err := doc.Unmarshal(xml); err != nil {
		return Checkpoint{}, fmt.Errorf("libvirt's checkpoint document: %w", err)
	}
	seconds, err := strconv.ParseInt(doc.CreationTime, 10, 64)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("creation time of checkpoint %s: %w", doc.Name, err)
	}
	out := Checkpoint{Name: checkpointName(doc.Name), CreationTime: time.Unix(seconds, 0).UTC()}
	if doc.Disks != nil {
		for _, d := range doc.Disks.Disks {
			if d.Checkpoint == "bitmap" {
				out.Volumes = append(out.Volumes, disks.volumeOf(d.Name))
			}
		}
	}
	return out, nil
}

// Redefine tells libvirt about a checkpoint that it may have lost. It defines the checkpoint on those of cp.Volumes
// whose bitmaps QEMU has and trusts, and returns them as valid. For each of the others, lost says what is wrong, and
// the remains of its bitmap are removed. Bitmaps of volumes that cp does not list are left alone. If no volume is
// valid, libvirt does not know the checkpoint afterwards. cp.CreationTime must be set. The domain must be running,
// because only QEMU can say whether a bitmap is good. No backup may be running.
func (s *Session) Redefine(ctx context.Context, cp Checkpoint) (valid []string, lost map[string]string, err error) {
	type result struct {
		valid []string
		lost  map[string]string
	}
	r, err := queryDomain(ctx, s, "redefine checkpoint "+cp.Name, func(d *libvirt.Domain) (result, error) {
		cp.Name = libvirtName(cp.Name)
		valid, lost, err := redefineCheckpoint(d, cp)
		return result{valid, lost}, err
	})
	return r.valid, r.lost, err
}

func redefineCheckpoint(d *libvirt.Domain, cp Checkpoint) ([]string, map[string]string, error) {
	if cp.CreationTime.IsZero() {
		return nil, nil, fmt.Errorf("%w: no creation time", errclass.Invalid)
	}
	disks, bitmaps, err := bitmapsOf(d)
	if err != nil {
		return nil, nil, err
	}
	valid, lost := splitByDefect(cp, disks, bitmaps)
	// Replace whatever libvirt knows about this checkpoint with the current facts.
	if err := forgetCheckpoint(d, cp.Name); err != nil {
		return nil, nil, err
	}
	var leftover []string
	for volume := range lost {
		if _, there := bitmaps[volume][cp.Name]; there {
			leftover = append(leftover, volume)
		}
	}
	if err := removeBitmaps(d, disks, cp, leftover); err != nil {
		return nil, nil, err
	}
	if len(valid) == 0 {
		return nil, lost, nil
	}
	cp.Volumes = valid
	err = defineCheckpoint(d, disks, cp, libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE|libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE_VALIDATE)
	if err != nil {
		return nil, nil, err
	}
	return valid, lost, nil
}

// defineCheckpoint tells libvirt about a checkpoint whose bitmaps exist.
func defineCheckpoint(d *libvirt.Domain, disks diskMap, cp Checkpoint, flags libvirt.DomainCheckpointCreateFlags) error {
	doc, err := checkpointXML(cp, disks)
	if err != nil {
		return err
	}
	c, err := d.CreateCheckpointXML(doc, flags)
	if err != nil {
		return err
	}
	return c.Free()
}

// removeBitmaps removes a checkpoint's bitmaps from these volumes. libvirt must not know the checkpoint. libvirt
// removes bitmaps only of a checkpoint that it knows, so removeBitmaps defines it without validation and deletes it at once.
func removeBitmaps(d *libvirt.Domain, disks diskMap, cp Checkpoint, volumes []string) error {
	if len(volumes) == 0 {
		return nil
	}
	cp.Volumes = volumes
	if err := defineCheckpoint(d, disks, cp, libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE); err != nil {
		return fmt.Errorf("remove leftover bitmap: %w", err)
	}
	c, err := d.CheckpointLookupByName(cp.Name, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(c.Delete(0), c.Free()); err != nil {
		return fmt.Errorf("remove leftover bitmap: %w", err)
	}
	return nil
}

// forgetCheckpoint removes a checkpoint from libvirt but keeps its bitmaps.
func forgetCheckpoint(d *libvirt.Domain, name string) error {
	c, err := d.CheckpointLookupByName(name, 0)
	if errorNumber(err) == libvirt.ERR_NO_DOMAIN_CHECKPOINT {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(c.Delete(libvirt.DOMAIN_CHECKPOINT_DELETE_METADATA_ONLY), c.Free())
}

// DeleteCheckpoint removes a checkpoint and its bitmaps from all disks, including bitmaps that libvirt no longer
// knows. An unknown name is no error. Other checkpoints are not changed. The domain must be running.
func (s *Session) DeleteCheckpoint(ctx context.Context, name string) error {
	return s.withDomain(ctx, "delete checkpoint "+name, func(d *libvirt.Domain) error {
		name := libvirtName(name)
		disks, bitmaps, err := bitmapsOf(d)
		if err != nil {
			return err
		}
		if err := forgetCheckpoint(d, name); err != nil {
			return err
		}
		var holders []string
		for volume, held := range bitmaps {
			if _, there := held[name]; there {
				holders = append(holders, volume)
			}
		}
		// The time has no meaning: the checkpoint lives for one call.
		return removeBitmaps(d, disks, Checkpoint{Name: name, CreationTime: time.Unix(1, 0)}, holders)
	})
}

// DirtyBytes returns how many bytes of each volume changed since the checkpoint, in whole bitmap clusters of 64 KiB.
// An incremental backup of the volume will write that much. ErrCheckpointLost: no volume has the checkpoint's bitmap,
// or at least one volume's bitmap is unusable; the map still has the other volumes.
func (s *Session) DirtyBytes(ctx context.Context, checkpoint string) (map[string]uint64, error) {
	return queryDomain(ctx, s, "dirty bytes since "+checkpoint, func(d *libvirt.Domain) (map[string]uint64, error) {
		_, bitmaps, err := bitmapsOf(d)
		if err != nil {
			return nil, err
		}
		return dirtyBytes(bitmaps, libvirtName(checkpoint))
	})
}

// bitmapsOf asks QEMU for the bitmaps of the tracked disks. libvirt has no call that says which bitmaps exist and why
// one is bad. The command only reads.
func bitmapsOf(d *libvirt.Domain) (diskMap, bitmapsByVolume, error) {
	_, disks, err := disksOf(d)
	if err != nil {
		return nil, nil, err
	}
	answer, err := d.QemuMonitorCommand(queryBitmaps, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
	if err != nil {
		return nil, nil, err
	}
	bitmaps, err := parseBitmaps(answer, disks)
	return disks, bitmaps, err
}
