package nbd

// BlockSizes are an export's constraints on requests, in bytes: section "Block size constraints".
type BlockSizes struct {
	// Minimum is a power of two up to 64 KiB; offsets and lengths are multiples of it.
	Minimum uint32
	// Preferred is the smallest request that is efficient.
	Preferred uint32
	// Maximum is the largest payload of a request.
	Maximum uint32
}

// defaultBlockSizes applies when a server does not announce any.
var defaultBlockSizes = BlockSizes{Minimum: 1, Preferred: 4 << 10, Maximum: defaultMaxBlockBytes}

// Info describes an export.
type Info struct {
	// Name is the server's name for it; empty if the server did not say.
	Name string
	// Description is the server's, for people; often empty.
	Description string
	// Bytes is the export's size.
	Bytes int64
	Flags TransmissionFlags
	Block BlockSizes
	// Contexts are the metadata contexts: in a Client those that were negotiated, from Inspect all that exist.
	Contexts []string
}

// ListedExport is an export that a server lists.
type ListedExport struct {
	Name string
	// Description is for people; often empty.
	Description string
}
