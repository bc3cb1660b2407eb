// Package nbd speaks the NBD protocol, as a client and as a server: fixed newstyle negotiation, TLS, structured replies,
// extended headers and metadata contexts. The protocol document is doc/proto.md of the NetworkBlockDevice project; comments
// name its constants and sections.
//
// A Client reads and writes one export over one or more connections. Every method may be called from any goroutine: requests
// are pipelined, replies arrive in any order and go straight into the caller's buffer. The bytes in flight are bounded. A method that has
// returned, whatever its error, touches the caller's buffer no more. The first failure of a connection fails the
// client: everything in flight and every later call returns that one cause. Nothing is retried here.
//
// A Server serves what its Exports open. Requests of one connection run side by side, in a bounded number of
// goroutines with bounded memory; a client that is slow, silent or hostile costs what Limits says and no more, and
// loses what others need and it does not use. A
// backend that panics fails its request. When a client is gone, the context of its requests is cancelled.
//
// Neither side trusts the other: what breaks the protocol ends the connection with ErrProtocol. With TLS configured, nothing but the
// request for it is ever sent or accepted in plaintext.
//
// Offsets and lengths are bytes.
package nbd
