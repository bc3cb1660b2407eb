// Package scrub reads the images on a node's disks now and then, and compares each MiB with the hash that was recorded
// when the image was sealed. It finds bits that changed on the disk before somebody reads them.
//
// A pass reads all images of a disk once, past the page cache, at a low rate, one MiB at a time. scrub.json on the disk
// records how far it is, so that it goes on from there after a restart. A copy with a wrong MiB is marked as damaged,
// so that nobody reads or clones it, and is then repaired with the MiB of another copy, if one is ready. Volumes that
// are clones of the copy keep the wrong block, because they share it. They are named until they have overwritten it, or
// are deleted, and so is what is made of them: clones, snapshots and images.
//
// One goroutine does all of that. What it knows is safe for concurrent use.
package scrub
