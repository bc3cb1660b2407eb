// Package link keeps the handler in touch with the launchers of its node: one connection a launcher pod, and on it
// the latest state that the launcher reported.
//
// A link connects, follows the launcher's Watch stream and connects again for as long as it exists. Whoever
// subscribed is told of every change; the state itself is read with [Link.Snapshot], so nothing queues up. A stream that is
// silent for [Timing].Idle is opened anew: the launcher answers a new stream at once, so a launcher or a connection that hangs
// is noticed within Idle + First, whatever the transport thinks. Every call has a deadline.
//
// What a launcher says is not trusted: messages are bounded in size and in the number of their parts before anybody
// sees them.
//
// All methods may be called concurrently.
package link
