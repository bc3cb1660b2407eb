// Package repository keeps disks in a kopia repository. A restore point is a kopia snapshot: a directory with one file per disk,
// and beside them an entry with the metadata that kopia has no place for. Each restore point is a whole image. What restore
// points share is stored once, so there is no chain: any of them can be deleted without affecting the others. The upstream kopia
// CLI lists, verifies, mounts and restores them. docs/format.md specifies the bytes.
//
// A disk is cut into blocks of one size, which stays the same over the disk's history. The table of its blocks is a tree of two
// levels: a list of regions, and for each region a table of RegionBlocks blocks. A change therefore costs its blocks, the tables
// of its regions, and one list of regions.
//
// Data is written before the index that names it, and the index before the manifest. A backup is invisible until its manifest
// exists, and complete from then on. The next backup finds what a killed backup has uploaded.
//
// Packages below have the parts: storage, table, engine, image, verify and maintain (docs/architecture.md). A program calls
// storage.Register once before it opens a repository.
//
// A Repository and an Image are safe for concurrent use.
package repository
