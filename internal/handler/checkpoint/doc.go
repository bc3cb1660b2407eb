// Package checkpoint keeps three things in agreement: the checkpoints that the trackers of a machine name, the checkpoints
// that libvirt knows, and the bitmaps in the machine's overlays.
//
// The tracker is the truth about which checkpoints are wanted, the overlay about which can be trusted. After each start
// of a guest the wanted ones are defined again and validated; a disk whose bitmap is missing or inconsistent is taken out
// of the tracker, so that its next backup is full; a checkpoint that no tracker names is deleted.
//
// Callers hold the launcher link's Checkpoints lock. Trackers are always read from the API server: a stale tracker would
// make a new checkpoint look unreferenced.
package checkpoint
