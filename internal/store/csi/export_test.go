package csi

// SweepVolumes is what Run does from time to time.
var SweepVolumes = (*Driver).sweepVolumes

// SweepReaders is what Run does from time to time.
var SweepReaders = (*Driver).sweepReaders
