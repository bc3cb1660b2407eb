// Package checkpoint keeps three things in agreement: the checkpoints that a machine's trackers name, the
// checkpoints that libvirt knows, and the bitmaps in the machine's overlays.
//
// The trackers are the truth about which checkpoints are wanted, and the overlays about which of them can be
// trusted. After each start of a guest the wanted checkpoints are defined again and validated. A disk whose bitmap
// is missing or inconsistent is removed from the tracker's checkpoint, so that its next backup is full. A
// checkpoint that no tracker names is deleted.
//
// Callers hold the lock Checkpoints of the launcher's client. Trackers are always read from the API server: an outdated
// tracker would make a new checkpoint look unreferenced.
package checkpoint
