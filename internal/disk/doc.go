// Package disk opens disks: a Source reads one, a Target writes one. A disk is a raw file, a block device, a qcow2
// image or an NBD export; callers see no difference.
//
// The package never guesses the format of a file from its content: a guest can write the header of another format into
// its raw disk, and that header can name other files of the host. A file is raw unless the caller says otherwise.
//
// The package reads and writes qcow2 through a qemu-storage-daemon, which it starts for one image and one Source or
// Target. The image may come from anybody, and could name any file of this host as its backing or data file. So the
// package opens the image once and checks its header. It gives the daemon the open descriptors and a description of
// every node, which leaves nothing to the header. The daemon must report what it has opened before it exports anything.
// It has no environment and, where the kernel has Landlock and seccomp, no access to other files or to the network. It
// listens on a socket in a private directory, which is removed as soon as the connections are established. It dies with
// this process, and Close ends it. The thread that started it ends with it.
//
// Sources and Targets are safe for concurrent use, except for Close. A source must not be written while it is read. The
// package takes the disk's lock the way QEMU does, so that no virtual machine that respects the lock writes the disk.
// It refuses a disk that a virtual machine already writes, that is mounted, or that has an unfinished restore of this
// package, running or interrupted. It notices when a file changes its size. What an NBD export holds is the server's
// business.
//
// A Journal makes a restore resumable. What it says about a region is true: it is written after the data is on stable
// storage, and replaced atomically. On a full file system it is overwritten instead, in a way that survives a crash.
//
// Errors name the disk and say what to do. They have the classes of package errclass.
package disk
