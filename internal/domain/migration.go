package domain

// Migration is where a guest moves to.
type Migration struct {
	// Connection is the URI of the target's libvirtd, as the source's libvirtd reaches it.
	Connection string
	// Stream is a unix socket: the source's QEMU connects to it there, and the target's QEMU listens at the same path on
	// its side.
	Stream string
	// BandwidthBytes limits how many bytes are sent per second. 0 means no limit. libvirt counts in MiB and the limit is
	// rounded up.
	BandwidthBytes uint64
}

// MigrationJob is the progress of a migration.
type MigrationJob struct {
	// Active says that one runs. Otherwise all other fields are zero.
	Active bool
	// Of TotalBytes of memory, ProcessedBytes are sent and RemainingBytes are left. What the guest dirties meanwhile
	// counts again.
	TotalBytes, ProcessedBytes, RemainingBytes uint64
	// DowntimeMillis is how long the guest is expected to stand still. 0: libvirt does not know it yet.
	DowntimeMillis uint64
}
