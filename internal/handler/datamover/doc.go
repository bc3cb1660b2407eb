// Package datamover drives DataUploads and DataDownloads (velero.io) through their phases, as docs/design/20261123-data-mover.md
// has them: it takes them, has their volumes exposed, runs their mover pods, and disposes of what was made.
//
// One pure function, decide, says what is to be done next with an object, from the object, its pod, the nodes, what the exposer answers,
// and the clock. The Reconciler gathers that and does what decide says, one step after the other, until there is a status to write
// or something to wait for. It never waits itself: every wait is a deadline in status.message and a request for later. The Taker
// decides which waiting object a node takes next: a single function, choose, is fair between namespaces.
//
// An object has one driver, status.acceptedByNode, and only the driver's handler acts for it. Every write of an object has the resource
// version that was read, so of two handlers that decide at once, one wins, and the other one decides again. What a driver must
// remember is in an annotation of the object (memory). A handler may be killed at any line: the next one reads the same objects and
// goes on, because every step can be repeated.
//
// The package touches no object that another data mover serves.
package datamover
