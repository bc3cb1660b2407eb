// Package nbd speaks the NBD protocol, as a client and as a server: fixed newstyle negotiation, TLS, structured
// replies, extended headers and metadata contexts. The protocol document is doc/proto.md of the NetworkBlockDevice
// project; comments name its constants and sections.
//
// A Client reads and writes one export over one or more connections. Every method may be called from any goroutine:
// requests are pipelined, and replies arrive in any order and go straight into the caller's buffer. The bytes in flight
// are bounded. Once a method has returned, with or without an error, nothing touches the caller's buffer any more. The
// first failure of a connection fails the client: everything in flight and every later call returns that one cause. The
// client retries nothing.
//
// A Server serves what its Exports open. The requests of one connection run side by side, in a bounded number of
// goroutines with bounded memory. A client that is slow, silent or hostile costs no more than Limits allow, and loses
// the resources that it does not use when others need them. A backend that panics fails its request. When a client is
// gone, the context of its requests is cancelled.
//
// Neither side trusts the other: a breach of the protocol ends the connection with ErrProtocol. With TLS configured,
// nothing but the request for it is ever sent or accepted in plaintext.
//
// Offsets and lengths are bytes.
package nbd
