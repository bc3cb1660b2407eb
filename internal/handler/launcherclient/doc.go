// Package launcherclient keeps the handler in touch with the launchers of its node: it has one connection per launcher pod,
// and the latest state that the launcher reported on it.
//
// A client connects, follows the launcher's Watch stream, and reconnects for as long as it exists. Subscribers are
// told of every change. They read the state itself with [Client.Snapshot], so that nothing queues up. A stream that
// is silent for [Timing].Idle is opened again. The launcher answers a new stream at once, so a launcher or a
// connection that hangs is noticed within Idle + First, whatever the transport reports. Every call has a deadline, and is
// waited for without a place of package turns.
//
// What a launcher says is not trusted: the size of messages and the number of their parts are bounded before
// anybody sees them.
//
// All methods are safe for concurrent use.
package launcherclient
