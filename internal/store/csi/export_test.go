package csi

// DiscardOrphans is what Run does from time to time.
var DiscardOrphans = (*Driver).discardOrphans
