// Package blobhttp serves a storage of blobs over HTTP, and is its client: for a storage that another process has, such as a pod that
// mounts a claim.
//
// A Handler serves any blob.Storage, and a Client is one. What the storage promises holds for the client as well: PutBlob returns when the
// blob is as durable as the storage makes it, a blob that arrives incompletely is not stored, and a list that is cut off is an error.
// Errors keep what callers act on: the sentinels of package blob, the classes of errclass, and the system's errors about space and
// permission.
//
// All requests may share one connection that knows nothing of them, such as a forwarded port. There, data that nobody reads holds up everything
// behind it. So the client sends a blob when the handler has begun to read it, and the handler sends blobs as it reads them. While a blob waits
// for its turn, or is being made durable, the handler says so at times (102 Processing).
//
// Nothing here encrypts the connection: serve the handler only at an address that nobody but its client reaches. Blobs
// are encrypted already, but anyone who can reach the handler can delete them. If others can reach the address, use
// Protect, which asks for the client's Key.
package blobhttp
