package nbd

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

var (
	// ErrProtocol: the peer broke the protocol, and the connection to it has ended.
	ErrProtocol = errors.New("nbd: protocol violation")
	// ErrClosed: the client was closed or disconnected by its user.
	ErrClosed = errors.New("nbd: client is closed")
	// ErrUnknownExport: the server has no export of this name.
	ErrUnknownExport = errors.New("nbd: unknown export")
	// ErrTLS: the server does not do TLS and the client demands it, or the other way round.
	ErrTLS = errors.New("nbd: TLS is required on both sides")
	// ErrNoContext: the metadata context was not asked for, or the server does not have it.
	ErrNoContext = errors.New("nbd: metadata context was not negotiated")
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Error is the refusal of a request, by the server or by the check before sending. The connection goes on. errors.Is
// finds Errno: EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP or ESHUTDOWN, the values of section "Error
// values".
type Error struct {
	// Op is the command, in words.
	Op string
	// Extent is what the command was about, or the part that failed if the command was split.
	Extent extent.Extent
	// Errno is never 0.
	Errno syscall.Errno
	// Message is the server's, for people; often empty.
	Message string
	// Offset is where the command failed, or -1 if the server does not say.
	Offset int64
}

// Error names the operation, the place and the reason.
func (e *Error) Error() string {
	text := fmt.Sprintf("nbd: %s %v: %v", e.Op, e.Extent, e.Errno)
	if e.Offset >= 0 {
		text += fmt.Sprintf(" at %d", e.Offset)
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap returns Errno.
func (e *Error) Unwrap() error { return e.Errno }

// OptionError is the server's refusal of an option in the handshake. errors.Is finds ErrUnknownExport and ErrTLS if
// that is what the refusal means.
type OptionError struct {
	// Option and Reply are the protocol's numbers: sections "Option types" and "Option reply types".
	Option, Reply uint32
	// Message is the server's, for people; often empty.
	Message string
}

// Error names the option and the refusal.
func (e *OptionError) Error() string {
	text := fmt.Sprintf("nbd: server refused option %s: %s", optionName(e.Option), refusalName(e.Reply))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Is maps refusals to this package's errors.
func (e *OptionError) Is(target error) bool {
	switch e.Reply {
	case repErrUnknown:
		return target == ErrUnknownExport
	case repErrTLSReqd:
		return target == ErrTLS
	}
	return e.Option == optStartTLS && target == ErrTLS
}

func optionName(option uint32) string {
	names := map[uint32]string{
		optExportName: "EXPORT_NAME", optAbort: "ABORT", optList: "LIST", optStartTLS: "STARTTLS", optInfo: "INFO", optGo: "GO",
		optStructuredReply: "STRUCTURED_REPLY", optListMetaContext: "LIST_META_CONTEXT", optSetMetaContext: "SET_META_CONTEXT",
		optExtendedHeaders: "EXTENDED_HEADERS",
	}
	if name := names[option]; name != "" {
		return name
	}
	return fmt.Sprint(option)
}

func refusalName(reply uint32) string {
	names := map[uint32]string{
		repErrUnsup: "not supported", repErrPolicy: "forbidden by policy", repErrInvalid: "invalid", repErrPlatform: "not supported on its platform",
		repErrTLSReqd: "TLS is required", repErrUnknown: "no such export", repErrShutdown: "shutting down",
		repErrBlockSizeReqd: "it requires block sizes to be asked for", repErrTooBig: "too big",
	}
	if name := names[reply]; name != "" {
		return name
	}
	return fmt.Sprintf("error %#x", reply)
}

// errnoFromWire returns what a number in a reply means. A number that the protocol document does not list counts as
// EINVAL.
func errnoFromWire(number uint32) syscall.Errno {
	switch e := syscall.Errno(number); e {
	case unix.EPERM, unix.EIO, unix.ENOMEM, unix.EINVAL, unix.ENOSPC, unix.EOVERFLOW, unix.ENOTSUP, unix.ESHUTDOWN:
		return e
	default:
		return unix.EINVAL
	}
}

// errnoToWire returns the number for a backend's error: section "Error values".
func errnoToWire(err error) uint32 {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		errno = unix.ESHUTDOWN
	}
	switch errno {
	case unix.EPERM, unix.EACCES, unix.EROFS:
		return uint32(unix.EPERM)
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return uint32(unix.ENOSPC)
	case unix.ENOMEM, unix.EINVAL, unix.EOVERFLOW, unix.ENOTSUP, unix.ESHUTDOWN:
		return uint32(errno)
	default:
		return uint32(unix.EIO)
	}
}
