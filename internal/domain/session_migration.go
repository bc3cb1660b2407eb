//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"

	"libvirt.org/go/libvirt"

	"github.com/varvebackup/varve/internal/errclass"
)

const mebibyte = 1 << 20

// migrationFlags: the disks are on claims that both sides have (UNSAFE: libvirt cannot know that). The guest stays
// paused on the target: if the connection breaks at the very end, libvirt lets the source go on and cannot know what
// the target does. Whoever knows that the source's QEMU is gone resumes the target's (Resume).
const migrationFlags = libvirt.MIGRATE_LIVE | libvirt.MIGRATE_PEER2PEER | libvirt.MIGRATE_PERSIST_DEST |
	libvirt.MIGRATE_UNSAFE | libvirt.MIGRATE_PAUSED | libvirt.MIGRATE_ABORT_ON_ERROR

// Migrate moves the running guest and returns when it is paused on the target and gone here: StateShutOff with
// ReasonMigrated. After an error Info says what has become of it, because libvirt may fail after that. Unlike other
// calls it goes on when ctx ends, until AbortMigration.
func (s *Session) Migrate(ctx context.Context, m Migration) error {
	return s.withDomain(ctx, "migrate", func(d *libvirt.Domain) error {
		params := &libvirt.DomainMigrateParameters{URISet: true, URI: "unix://" + m.Stream}
		if m.BandwidthBytes > 0 {
			params.BandwidthSet, params.Bandwidth = true, (m.BandwidthBytes+mebibyte-1)/mebibyte
		}
		return d.MigrateToURI3(m.Connection, params, migrationFlags)
	})
}

// MigrationJob returns how the migration from here goes.
func (s *Session) MigrationJob(ctx context.Context) (MigrationJob, error) {
	return queryDomain(ctx, s, "migration job", func(d *libvirt.Domain) (MigrationJob, error) {
		now, err := d.GetJobStats(0)
		if err != nil || !isMigration(now) {
			return MigrationJob{}, err
		}
		return MigrationJob{
			Active: true, TotalBytes: now.DataTotal, ProcessedBytes: now.DataProcessed, RemainingBytes: now.DataRemaining,
			DowntimeMillis: now.Downtime,
		}, nil
	})
}

func isMigration(info *libvirt.DomainJobInfo) bool {
	return info.Type != libvirt.DOMAIN_JOB_NONE && info.Operation == libvirt.DOMAIN_JOB_OPERATION_MIGRATION_OUT
}

// AbortMigration cancels the migration from here; Migrate returns once it has ended. Without one it does nothing.
func (s *Session) AbortMigration(ctx context.Context) error {
	err := s.withDomain(ctx, "abort migration", func(d *libvirt.Domain) error {
		if now, err := d.GetJobStats(0); err != nil || !isMigration(now) {
			return err
		}
		return d.AbortJob()
	})
	if errors.Is(err, ErrNotRunning) || errors.Is(err, errclass.NotFound) {
		return nil // it has ended in between
	}
	return err
}
