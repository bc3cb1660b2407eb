// Package disk opens disks: to read them as a Source, and to write them as a Target. A disk is a raw file, a block
// device, a qcow2 image or an NBD export; who uses it sees no difference.
//
// The format of a file is never guessed from its content: a guest can write the header of another format, which names other files
// of the host, into its raw disk. It is raw unless the caller says otherwise.
//
// qcow2 is read and written through a qemu-nbd that this package starts for one image and one Source or Target. It listens on a socket in
// a private directory that is gone as soon as the connections stand, dies with this process, and is ended by Close.
//
// Sources and Targets are safe for concurrent use, except for Close. A source is read as it is: that nobody writes it meanwhile, or that it is
// a point in time, is the caller's business. A file that changes its size is noticed, and one that a restore of this package writes, or has
// written a part of, is refused.
//
// A Journal makes a restore resumable. What it says of a region is true: it is written after the data is on stable storage, and
// replaced atomically.
//
// Errors name the disk and say what to do; ErrInvalid, ErrNotFound, ErrConflict, ErrNoSpace, ErrUnreachable and
// ErrChanged are their classes.
package disk
