// Package drive takes DataUploads and DataDownloads (velero.io) through their phases, as
// docs/design/20261123-data-mover.md has them: it gives each a place on a node, has its volume exposed, runs its mover
// pod, and disposes of what was made. It runs in the controller that has the lease, so an object has one driver.
//
// One pure function, decide, says what is to be done next with an object, from the object, its pod, the nodes, what
// the exposer answers, and the clock. The Reconciler gathers that and does what decide says, one step after the other,
// until there is a status to write or something to wait for. It never waits itself: every wait is a deadline in
// status.message and a request for later. The Taker decides which waiting object gets the next free place: a single
// function, choose, is fair between namespaces.
//
// A place is for what has a mover pod, or is about to have one. An object whose preparation takes longer than a minute,
// such as a snapshot, gives its place back, as far as the settings allow, and waits for another one when it is ready,
// without a deadline. The Taker alone gives places, so who is ready and who is new take turns.
//
// status.acceptedByNode names the node whose place the object has: its mover pod runs there, unless its volume can
// only be reached elsewhere. Every write of an object has the resource version that was read, so of two drivers that
// decide at once, such as another data mover's or an older version's, one wins, and the other one reads again. What
// the driver must remember is in an annotation of the object (memory). The controller may be killed at any line: the
// next one reads the same objects and goes on, because every step can be repeated.
//
// The package touches no object that another data mover serves.
package drive
