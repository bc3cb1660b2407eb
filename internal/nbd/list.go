package nbd

import (
	"context"
	"errors"
	"fmt"
)

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

// List asks a server for its exports. The target's export does not matter.
func List(ctx context.Context, t Target, o Options) ([]ListedExport, error) {
	var list []ListedExport
	err := askServer(ctx, t, o, func(h *clientHandshake) error {
		return h.negotiateOption(optList, nil, func(kind uint32, data []byte) error {
			if kind != repServer {
				return protocolError("reply %d to option LIST", kind)
			}
			l, err := parseServer(data)
			list = append(list, l)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list NBD exports: %w", err)
	}
	return list, nil
}

// Inspect asks about an export without opening it. Options.Contexts are queries; if there are none, the answer has
// every context of the server.
func Inspect(ctx context.Context, t Target, o Options) (Info, error) {
	var info Info
	err := askServer(ctx, t, o, func(h *clientHandshake) error {
		if err := h.negotiateHeaders(extendedHeaders); err != nil {
			return err
		}
		var err error
		if info, err = h.requestInfo(optInfo, t.Export); err != nil || h.headers == simpleHeaders {
			return err
		}
		info.Contexts, err = h.listContexts(contextRequest{export: t.Export, queries: o.Contexts})
		return err
	})
	if err != nil {
		return Info{}, fmt.Errorf("inspect NBD export %q: %w", t.Export, err)
	}
	return info, nil
}

func (h *clientHandshake) listContexts(q contextRequest) ([]string, error) {
	var names []string
	err := h.negotiateOption(optListMetaContext, q.encodeRequest(), func(kind uint32, data []byte) error {
		if kind != repMetaContext {
			return protocolError("reply %d to option LIST_META_CONTEXT", kind)
		}
		_, name, err := parseMetaContext(data)
		names = append(names, name)
		return err
	})
	if isUnsupported(err) {
		err = nil
	}
	return names, err
}

// askServer opens a connection that only asks questions.
func askServer(ctx context.Context, t Target, o Options, questions func(*clientHandshake) error) error {
	h, err := openHandshake(ctx, t, o, func(h *clientHandshake) error {
		err := questions(h)
		var refusal *OptionError
		if err == nil || errors.As(err, &refusal) {
			h.abortHandshake()
		}
		return err
	})
	if err != nil {
		return err
	}
	h.nc.Close() //nolint:errcheck // the server may have closed it first
	return nil
}
