// Package tunnel is the connection between a launcher and whoever reads its pull backup: the export server or a mover. It
// carries the volumes of package export over one TLS 1.3 connection. docs/tunnel.md has the bytes.
//
// The launcher dials (Run) and offers its volumes. The far end (Server) listens, and is an export.Volumes: what is read
// there is read by the launcher. Both sides prove that they hold the token of the backup, and the proof holds for one TLS
// connection, one backup, one version of the protocol and one role. No request and no byte of a disk is sent before.
//
// Many requests are in flight on the connection, side by side. Each has credits: the launcher reads from a disk only what
// the far end has room for, so that a request whose reader is slow costs no memory beyond its window, holds none of the
// launcher's workers, and delays no other request.
//
// A connection that breaks, or is silent for three keepalives, ends. What was in flight on it fails with Transient, and the
// launcher dials again until its context ends. Nothing is sent twice: the caller reads again what it misses.
//
// Neither side trusts the other. A breach of the protocol ends the connection with ErrProtocol, and never costs more
// memory than Limits and Config say. Every method may be called from any goroutine.
package tunnel
