package domain

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/errclass"
)

func domainDisks(specs []kubevirtv1.Disk, sources []Disk) ([]libvirtxml.DomainDisk, error) {
	targets := TargetDevices(specs)
	var out []libvirtxml.DomainDisk
	for _, spec := range specs {
		i := slices.IndexFunc(sources, func(s Disk) bool { return s.Volume == spec.Name })
		if i < 0 {
			return nil, fmt.Errorf("%w: disk %s has no volume", errclass.Invalid, spec.Name)
		}
		d, err := domainDisk(spec, sources[i], targets[spec.Name])
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", spec.Name, err)
		}
		out = append(out, d)
	}
	return out, nil
}

func domainDisk(spec kubevirtv1.Disk, source Disk, target string) (libvirtxml.DomainDisk, error) {
	readOnly := spec.Disk != nil && spec.Disk.ReadOnly
	shared := spec.Shareable != nil && *spec.Shareable
	switch {
	case readOnly && diskBus(spec) == "sata":
		return libvirtxml.DomainDisk{}, fmt.Errorf("%w: a sata disk cannot be read-only; use virtio or scsi", errclass.Invalid)
	case source.Overlay != "" && (readOnly || shared):
		return libvirtxml.DomainDisk{}, fmt.Errorf("%w: a read-only or shared disk cannot be tracked", errclass.Invalid)
	}
	d := libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{
			Name:  "qemu",
			Type:  "raw",
			Cache: "none",
			// A full or failing volume stops the guest until somebody repairs the volume. The guest never sees an I/O error.
			ErrorPolicy: "stop",
			Discard:     "unmap",
		},
		Source: diskSource(source),
		Target: &libvirtxml.DomainDiskTarget{Dev: target, Bus: diskBus(spec)},
		Serial: spec.Serial,
		Alias:  &libvirtxml.DomainAlias{Name: aliasPrefix + spec.Name},
	}
	if source.Block {
		// A device supports native asynchronous I/O without blocking. A sparse file may block, so it keeps QEMU's threads.
		d.Driver.IO = "native"
	}
	if source.Overlay != "" {
		d.Driver.Type = "qcow2"
		d.Source = &libvirtxml.DomainDiskSource{
			File: &libvirtxml.DomainDiskSourceFile{File: source.Overlay},
			DataStore: &libvirtxml.DomainDiskDataStore{
				Format: &libvirtxml.DomainDiskFormat{Type: "raw"},
				Source: d.Source,
			},
		}
	}
	if readOnly {
		d.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	if shared {
		d.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	if spec.BootOrder != nil {
		d.Boot = &libvirtxml.DomainDeviceBoot{Order: *spec.BootOrder}
	}
	return d, nil
}

// diskSource returns the source element of the raw disk itself.
func diskSource(source Disk) *libvirtxml.DomainDiskSource {
	if source.Block {
		return &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: source.RawPath}}
	}
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: source.RawPath}}
}
