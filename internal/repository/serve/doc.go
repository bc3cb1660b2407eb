// Package serve makes a disk of a restore point an NBD backend, so that a guest boots from it or a file system on it is mounted without
// a restore. It is read-only, or writable with an Overlay: a local file that takes all writes, and the repository none.
//
// Blocks are fetched from the repository as a whole and kept in a cache of bounded size. What reads sequentially finds the next blocks
// fetched already.
//
// Everything here is safe for concurrent use.
package serve
