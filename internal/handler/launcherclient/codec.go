package launcherclient

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxFields is how many fields and elements a message may have, with those of the messages in it. An empty element has two
// bytes on the wire and 130 in memory. An honest launcher with 64 disks and 100 checkpoints has about 7,000.
const maxFields = 16 << 10

// boundedCodec decodes messages of at most maxFields.
type boundedCodec struct{ encoding.CodecV2 }

func newBoundedCodec() boundedCodec { return boundedCodec{encoding.GetCodecV2(grpcproto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(proto.Message); ok {
		left := maxFields
		if err := countFields(data.Materialize(), m.ProtoReflect().Descriptor(), &left); err != nil {
			return err
		}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// countFields takes the fields and elements of a message, and of the messages in it, off left.
func countFields(wire []byte, message protoreflect.MessageDescriptor, left *int) error {
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return protowire.ParseError(n)
		}
		wire = wire[n:]
		if n = protowire.ConsumeFieldValue(number, kind, wire); n < 0 {
			return protowire.ParseError(n)
		}
		if *left--; *left < 0 {
			return fmt.Errorf("the launcher sends a %s with more than %d parts", message.Name(), maxFields)
		}
		if err := countParts(wire[:n], kind, message.Fields().ByNumber(number), left); err != nil {
			return err
		}
		wire = wire[n:]
	}
	return nil
}

// countParts takes what is in the value of a field off left: the fields of a message, or the elements of a packed list.
func countParts(value []byte, kind protowire.Type, field protoreflect.FieldDescriptor, left *int) error {
	if field == nil || kind != protowire.BytesType {
		return nil
	}
	content, n := protowire.ConsumeBytes(value)
	switch {
	case n < 0:
		return protowire.ParseError(n)
	case field.Message() != nil:
		return countFields(content, field.Message(), left)
	case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
		*left -= len(content) // an element has a byte or more
	}
	return nil
}
