// Package deletion deletes restore points: in a Job of their own those of DataUploads that were deleted, and with maintenance those whose
// Velero backup is gone from the location.
//
// Neither deletes a restore point of a backup that is in the location, one that is pinned, or one that the storage still locks. What cannot
// be read is never taken for something that is not there. Both can be killed and repeated at any step.
package deletion
