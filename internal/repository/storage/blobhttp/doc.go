// Package blobhttp serves a storage of blobs over HTTP, and is its client: for a storage that another process has, such as a pod that
// mounts a claim.
//
// A Handler serves any blob.Storage, and a Client is one. What the storage promises holds for the client as well: PutBlob returns when the
// blob is as durable as the storage makes it, a blob that arrives incompletely is not stored, and a list that is cut off is an error.
// Errors keep what callers act on: the sentinels of package blob, the classes of errclass, and the system's errors about space and
// permission.
//
// There is no encryption and no authentication: the handler belongs on an address that only its client reaches. Blobs are encrypted
// already, but whoever reaches it can delete them.
package blobhttp
