package nbd

// Magic numbers. Handshake: section "Newstyle negotiation" and "Fixed newstyle negotiation"; the others: section "Transmission".
const (
	initPasswd           = 0x4e42444d41474943 // INIT_PASSWD, "NBDMAGIC"
	oldstyleMagic        = 0x00420281861253   // cliserv_magic
	haveOptMagic         = 0x49484156454F5054 // "IHAVEOPT"
	optionReplyMagic     = 0x3e889045565a9
	requestMagic         = 0x25609513 // NBD_REQUEST_MAGIC
	simpleReplyMagic     = 0x67446698 // NBD_SIMPLE_REPLY_MAGIC
	structuredReplyMagic = 0x668e33ef // NBD_STRUCTURED_REPLY_MAGIC
	extendedRequestMagic = 0x21e41c71 // NBD_EXTENDED_REQUEST_MAGIC
	extendedReplyMagic   = 0x6e8a278c // NBD_EXTENDED_REPLY_MAGIC
)

// Handshake flags of the server and of the client.
const (
	flagFixedNewstyle  = 1 << 0 // NBD_FLAG_FIXED_NEWSTYLE
	flagNoZeroes       = 1 << 1 // NBD_FLAG_NO_ZEROES
	flagCFixedNewstyle = 1 << 0 // NBD_FLAG_C_FIXED_NEWSTYLE
	flagCNoZeroes      = 1 << 1 // NBD_FLAG_C_NO_ZEROES
)

// TransmissionFlags are what an export can do: section "Transmission flags".
type TransmissionFlags uint16

// The transmission flags, NBD_FLAG_* in the protocol document.
const (
	FlagHasFlags        TransmissionFlags = 1 << 0
	FlagReadOnly        TransmissionFlags = 1 << 1
	FlagSendFlush       TransmissionFlags = 1 << 2
	FlagSendFUA         TransmissionFlags = 1 << 3
	FlagRotational      TransmissionFlags = 1 << 4
	FlagSendTrim        TransmissionFlags = 1 << 5
	FlagSendWriteZeroes TransmissionFlags = 1 << 6
	FlagSendDF          TransmissionFlags = 1 << 7
	FlagCanMultiConn    TransmissionFlags = 1 << 8
	FlagSendCache       TransmissionFlags = 1 << 10
	FlagSendFastZero    TransmissionFlags = 1 << 11
)

// Has reports whether all of want are set.
func (f TransmissionFlags) Has(want TransmissionFlags) bool { return f&want == want }

// Options: section "Option types".
const (
	optExportName      = 1  // NBD_OPT_EXPORT_NAME
	optAbort           = 2  // NBD_OPT_ABORT
	optList            = 3  // NBD_OPT_LIST
	optStartTLS        = 5  // NBD_OPT_STARTTLS
	optInfo            = 6  // NBD_OPT_INFO
	optGo              = 7  // NBD_OPT_GO
	optStructuredReply = 8  // NBD_OPT_STRUCTURED_REPLY
	optListMetaContext = 9  // NBD_OPT_LIST_META_CONTEXT
	optSetMetaContext  = 10 // NBD_OPT_SET_META_CONTEXT
	optExtendedHeaders = 11 // NBD_OPT_EXTENDED_HEADERS
)

// Replies to options: section "Option reply types". Those with repErr set are errors.
const (
	repAck         = 1 // NBD_REP_ACK
	repServer      = 2 // NBD_REP_SERVER
	repInfo        = 3 // NBD_REP_INFO
	repMetaContext = 4 // NBD_REP_META_CONTEXT

	repErr              = 1 << 31
	repErrUnsup         = repErr + 1 // NBD_REP_ERR_UNSUP
	repErrPolicy        = repErr + 2 // NBD_REP_ERR_POLICY
	repErrInvalid       = repErr + 3 // NBD_REP_ERR_INVALID
	repErrPlatform      = repErr + 4 // NBD_REP_ERR_PLATFORM
	repErrTLSReqd       = repErr + 5 // NBD_REP_ERR_TLS_REQD
	repErrUnknown       = repErr + 6 // NBD_REP_ERR_UNKNOWN
	repErrShutdown      = repErr + 7 // NBD_REP_ERR_SHUTDOWN
	repErrBlockSizeReqd = repErr + 8 // NBD_REP_ERR_BLOCK_SIZE_REQD
	repErrTooBig        = repErr + 9 // NBD_REP_ERR_TOO_BIG
)

// Information about an export, in replies to NBD_OPT_INFO and NBD_OPT_GO.
const (
	infoExport      = 0 // NBD_INFO_EXPORT
	infoName        = 1 // NBD_INFO_NAME
	infoDescription = 2 // NBD_INFO_DESCRIPTION
	infoBlockSize   = 3 // NBD_INFO_BLOCK_SIZE
)

// command is the type of a request: section "Request types".
type command uint16

const (
	cmdRead        command = 0 // NBD_CMD_READ
	cmdWrite       command = 1 // NBD_CMD_WRITE
	cmdDisc        command = 2 // NBD_CMD_DISC
	cmdFlush       command = 3 // NBD_CMD_FLUSH
	cmdTrim        command = 4 // NBD_CMD_TRIM
	cmdCache       command = 5 // NBD_CMD_CACHE
	cmdWriteZeroes command = 6 // NBD_CMD_WRITE_ZEROES
	cmdBlockStatus command = 7 // NBD_CMD_BLOCK_STATUS
)

// String returns the word for the command in errors.
func (c command) String() string {
	names := [...]string{"read", "write", "disconnect", "flush", "trim", "cache", "write zeroes", "block status"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown command"
}

// CommandFlags change what a request does: section "Command flags".
type CommandFlags uint16

// The command flags that callers give, NBD_CMD_FLAG_* in the protocol document.
const (
	// CmdFlagFUA: the reply comes when what was written is on stable storage.
	CmdFlagFUA CommandFlags = 1 << 0
	// CmdFlagNoHole: zeroes are allocated, not a hole.
	CmdFlagNoHole CommandFlags = 1 << 1
	// CmdFlagFastZero: fail with ENOTSUP if zeroing is no faster than writing zeroes.
	CmdFlagFastZero CommandFlags = 1 << 4
)

const (
	cmdFlagDF         CommandFlags = 1 << 2 // NBD_CMD_FLAG_DF
	cmdFlagReqOne     CommandFlags = 1 << 3 // NBD_CMD_FLAG_REQ_ONE
	cmdFlagPayloadLen CommandFlags = 1 << 5 // NBD_CMD_FLAG_PAYLOAD_LEN
)

// Structured replies: section "Structured reply types".
const (
	replyFlagDone = 1 << 0 // NBD_REPLY_FLAG_DONE

	replyNone           = 0       // NBD_REPLY_TYPE_NONE
	replyOffsetData     = 1       // NBD_REPLY_TYPE_OFFSET_DATA
	replyOffsetHole     = 2       // NBD_REPLY_TYPE_OFFSET_HOLE
	replyBlockStatus    = 5       // NBD_REPLY_TYPE_BLOCK_STATUS
	replyBlockStatusExt = 6       // NBD_REPLY_TYPE_BLOCK_STATUS_EXT
	replyErr            = 1 << 15 // Set in the types that are errors.
	replyError          = replyErr + 1
	replyErrorOffset    = replyErr + 2
)

// Metadata contexts and their flags.
const (
	// ContextAllocation is the context that the protocol document defines; its flags are StateHole and StateZero.
	ContextAllocation = "base:allocation"
	// ContextDirtyBitmap is QEMU's prefix before the name of a bitmap; the flag is StateDirty.
	ContextDirtyBitmap = "qemu:dirty-bitmap:"

	// StateHole: not allocated. NBD_STATE_HOLE.
	StateHole = 1 << 0
	// StateZero: reads as zeroes. NBD_STATE_ZERO.
	StateZero = 1 << 1
	// StateDirty: changed since the bitmap began. NBD_STATE_DIRTY in QEMU's docs/interop/nbd.txt.
	StateDirty = 1 << 0
)

const (
	// maxStringBytes is the protocol's limit on names, queries and messages: section "Conventions".
	maxStringBytes = 4096
	// defaultMaxBlockBytes is the largest payload when the server does not say: section "Block size constraints".
	defaultMaxBlockBytes = 32 << 20
	// maxErrorBytes is the longest error chunk: its fixed part, a message whose length has 16 bits, and an offset.
	maxErrorBytes = 4 + 2 + 1<<16 + 8
	// exportPadBytes follow the reply to NBD_OPT_EXPORT_NAME unless both sides agreed to leave them out.
	exportPadBytes = 124
)
