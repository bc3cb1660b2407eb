// Package table knows how a disk lies in a kopia repository: its geometry, the blocks, and the tree of tables that names them
// (docs/format.md).
//
// A disk is cut into blocks of one size, which stays the same over the disk's history. A region is RegionBlocks blocks, and has a
// table that names them. The list of regions is a table, too, and names the regions' tables; it is the object of a disk. Tables
// are kopia's indirect objects, so that kopia reads a disk as one file.
//
// What is read is checked against the geometry: a table with other entries, a block of another length, and anything that is
// missing are errclass.Corrupt.
//
// A BlockWriter is safe for concurrent use, and so are all functions.
package table
