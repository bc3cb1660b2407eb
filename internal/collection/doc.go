// Package collection collects the volumes of a backup in pull mode in a directory: a file for each, and backup.json, the
// same manifest that backups in push mode have. A full volume becomes a sparse qcow2 image or a raw file. An incremental one
// becomes a qcow2 image with only what has changed, whose backing file is the volume's file in the parent's directory.
//
// A file has its name when it is complete and on stable storage, and the manifest is written last: a directory with a
// manifest is a backup. Until then the directory has pull.json, which says what is being collected, and for each volume a
// file with the suffix .partial and its journal. Collect goes on from them after an interruption, with at most a region
// that is fetched again.
//
// Nothing of two points in time is ever put together: the journal of a volume is for one entity tag, and every request
// names it. Checksums are those of the stream; the manifest has those of the files.
package collection
