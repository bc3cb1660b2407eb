package engine

import (
	"time"

	"github.com/kopia/kopia/snapshot"
)

// A session manifest is an incomplete kopia snapshot that keeps what a running backup has stored and found. Backups store it, and
// maintenance heeds it and drops it when its backup has died.
const (
	// TagSession marks a kopia snapshot as a session manifest; its value is the ID of the restore point to be.
	TagSession = "tag:varve-session"
	// TagSessionState is the tag with SessionRunning, or SessionEnded after a backup has failed and reported it.
	TagSessionState = "tag:varve-session-state"
	SessionRunning  = "running"
	SessionEnded    = "ended"
	// TagSessionOwner is the tag with the user@host that backs up.
	TagSessionOwner = "tag:varve-session-owner"
	// TagSessionDisks lists the disks of its source that a session backs up.
	TagSessionDisks = "tag:varve-session-disks"
	// SessionLive is how long a session counts as running without a renewal.
	SessionLive = 2 * time.Hour
	// SessionLife is how long a session manifest is kept after its last renewal, so that the next backup finds what was uploaded.
	SessionLife = 14 * 24 * time.Hour
)

// LifeOf returns how long a snapshot counts after its end time; 0 if it is neither a lease nor a session manifest.
func LifeOf(m *snapshot.Manifest) time.Duration {
	switch {
	case m.Tags[TagSession] != "":
		return SessionLife
	case m.Tags[TagLease] != "":
		return LeaseLife
	}
	return 0
}
