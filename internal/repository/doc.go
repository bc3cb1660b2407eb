// Package repository keeps disks in a kopia repository. A restore point is a kopia snapshot: a directory with one file a disk, and
// beside the disks an entry that says what kopia has no place for. Each restore point is a whole image; what it shares with
// others is stored once, so there is no chain: any of them can go without the rest noticing. The upstream kopia CLI
// lists, verifies, mounts and restores them. docs/format.md has the bytes.
//
// A disk is cut into blocks of one size, which stays the same over the disk's history, and the table of its blocks is a tree of
// two levels: regions of RegionBlocks blocks, so that a change costs its blocks, the tables of its regions, and one list of regions.
//
// Data is written before the index that names it, and that before the manifest. Until the manifest is there a backup is
// invisible, and afterwards it is complete. What a killed backup has uploaded is found again by the next one.
//
// A Repository and an Image are safe for concurrent use.
package repository
