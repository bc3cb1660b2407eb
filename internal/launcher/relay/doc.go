// Package relay carries a migration's connections from the source's launcher to the target's, because libvirt and QEMU
// listen on private unix sockets only.
//
// The target has a Server on one TCP port. The source dials it once for each connection, with TLS 1.3. The certificates
// are thrown away: what counts is that both sides prove that they hold the migration's token, with an HMAC-SHA256 over
// keying material of this very TLS connection (RFC 5705, RFC 9266), the migration's UID and the role. The source proves
// itself first. Nobody in between can pass a proof on to another connection, and no side can use the other's proof.
// After the proofs the source sends one byte, the Stream.
//
// A connection that has not proven anything is closed after 10 seconds, and few of them may wait at once. Everything
// ends with the context that it was begun with.
package relay
