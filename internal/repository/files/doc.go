// Package files stores a tree of files in a kopia repository, and writes it back.
//
// kopia's uploader stores the tree, from this package's view of the file system. kopia's directories have names, types, owners,
// permissions, sizes and times of modification. Everything else is in a second object, the attributes: extended attributes, hard
// links, holes, pipes and devices. They are in the order of the tree, so that a restore reads both side by side and keeps neither
// in memory. docs/format.md specifies the bytes.
//
// A tree is read without following symbolic links and without leaving its file system, and so is it written. Paths may be longer
// than the kernel takes at once.
//
// The functions of this package are safe for concurrent use, on different directories.
package files
