// Package authority signs the certificates of export pods. It keeps its keys in a Secret in Varve's namespace, and
// replaces them before they end.
//
// There are up to two authorities with a key: the present one, which signs, and the next one, which clients learn to
// trust before it signs anything. A new authority is made publishBefore the present one's end and takes over
// switchBefore it, so that clients have two weeks to read the list of authorities again. An authority that signs no
// more has no key, and stays in the list until it ends. No certificate outlives the authority that signed it, so the
// list verifies every certificate that is in use.
//
// All of that is in one Secret, and one write takes it from one state to the next, with optimistic concurrency. So a
// crash leaves the old state or the new one, and of two controllers that rotate at the same time one reads what the
// other has written. A Secret that is deleted or damaged costs trust: new authorities are made, those that can
// still be read stay in the list, and certificates of those that cannot are issued again by whoever keeps them.
//
// After an outage that the schedule does not survive, as of months, a new authority signs at once.
package authority
