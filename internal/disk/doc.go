// Package disk opens disks: to read them as a Source, and to write them as a Target. A disk is a raw file, a block
// device, a qcow2 image or an NBD export; who uses it sees no difference.
//
// The format of a file is never guessed from its content: a guest can write the header of another format, which names other files
// of the host, into its raw disk. It is raw unless the caller says otherwise.
//
// qcow2 is read and written through a qemu-storage-daemon that this package starts for one image and one Source or Target. Its
// image may be anybody's, and could name any file of this host as its backing or data file. So the image is opened once, here; its header is
// checked; the daemon gets the open descriptors and a description of every node, in which nothing is left to the header; and before anything is
// exported it tells what it has opened. It has no environment, and no access to other files or to the network where the kernel has Landlock and seccomp.
// It listens on a socket in a private directory that is gone as soon as the connections stand, dies with this process, and is ended by
// Close. The thread that has started it ends with it.
//
// Sources and Targets are safe for concurrent use, except for Close. A source must not be written meanwhile: the disk's lock is taken as QEMU takes it, so
// that no virtual machine that heeds it writes, and a disk that one writes already, or that is mounted, is refused. So is one that a restore
// of this package writes, or has written a part of. A file that changes its size is noticed. What an NBD export has is the server's business.
//
// A Journal makes a restore resumable. What it says of a region is true: it is written after the data is on stable storage, and
// replaced atomically.
//
// Errors name the disk and say what to do; ErrInvalid, ErrNotFound, ErrConflict, ErrNoSpace, ErrUnreachable and
// ErrChanged are their classes.
package disk
