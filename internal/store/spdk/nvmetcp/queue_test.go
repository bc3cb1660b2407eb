package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/varvebackup/varve/internal/errclass"
)

// scriptedConn is a connection to a target that says what it says, whatever it hears.
type scriptedConn struct {
	net.Conn

	says io.Reader
}

func (c *scriptedConn) Read(p []byte) (int, error)  { return c.says.Read(p) }
func (c *scriptedConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *scriptedConn) Close() error                { return nil }

func encodeData(id uint16, flags byte, offset uint32, data []byte) []byte {
	return encodePDU(pduDataToHost, flags, headerBytes, func(h []byte) {
		littleEndian.PutUint16(h, id)
		littleEndian.PutUint32(h[4:], offset)
		littleEndian.PutUint32(h[8:], uint32(len(data)))
	}, data)
}

func encodeResponse(id, status uint16) []byte {
	return encodePDU(pduResponse, 0, headerBytes, func(h []byte) {
		littleEndian.PutUint16(h[12:], id)
		littleEndian.PutUint16(h[14:], status<<1)
	}, nil)
}

func encodeReady(id uint16, offset, length uint32) []byte {
	return encodePDU(pduReadyToTransfer, 0, headerBytes, func(h []byte) {
		littleEndian.PutUint16(h, id)
		littleEndian.PutUint32(h[4:], offset)
		littleEndian.PutUint32(h[8:], length)
	}, nil)
}

// What a real target says is in the recorded session of the parent package. This is what none should say.
func TestQueue_refusesWhatIsOutOfStep(t *testing.T) {
	t.Parallel()
	block := bytes.Repeat([]byte{7}, 4096)
	parts := append(encodeData(0, 0, 0, block[:512]), encodeData(0, flagSuccess|flagLast, 512, block[512:])...)
	tooLong := encodeResponse(0, 0)
	littleEndian.PutUint32(tooLong[4:], 1<<31)
	for name, x := range map[string]struct {
		says []byte
		want string // of the error, or empty
	}{
		"right":                 {encodeData(0, flagSuccess|flagLast, 0, block), ""},
		"in two parts":          {parts, ""},
		"with a response":       {append(encodeData(0, flagLast, 0, block), encodeResponse(0, 0)...), ""},
		"too little":            {encodeData(0, flagSuccess|flagLast, 0, block[:512]), "512 of 4096 bytes"},
		"too much":              {encodeData(0, flagSuccess|flagLast, 0, append(block, 1)), "4097 bytes at 0"},
		"at another place":      {encodeData(0, flagSuccess|flagLast, 512, block), "at 512"},
		"for another command":   {encodeData(3, flagSuccess|flagLast, 0, block), "were to come"},
		"another one's end":     {encodeResponse(3, 0), "answers command 3"},
		"an end without data":   {encodeResponse(0, 0), "0 of 4096 bytes"},
		"an error":              {encodeResponse(0, 0x281), "status 0x81 of type 2"},
		"no data to write":      {encodeReady(0, 0, 512), "asks for 512 bytes"},
		"a termination":         {encodePDU(pduTermination, 0, headerBytes, func([]byte) {}, nil), "type 0x3"},
		"a length without end":  {tooLong, "2147483648 bytes"},
		"an unknown PDU":        {encodePDU(0x33, 0, headerBytes, func([]byte) {}, nil), "type 0x33"},
		"a header of 8 bytes":   {encodePDU(pduResponse, 0, commonBytes, func([]byte) {}, nil), "header of 8 bytes"},
		"an end in a header":    {encodeResponse(0, 0)[:5], "unexpected EOF"},
		"an end in the data":    {encodeData(0, flagSuccess, 0, block)[:100], "unexpected EOF"},
		"the end of everything": {nil, "EOF"},
	} {
		q := &queue{conn: &scriptedConn{says: bytes.NewReader(x.says)}, maxWrite: 4096}
		c := &command{read: make([]byte, len(block))}
		_, err := q.run(t.Context(), c)
		var status *StatusError
		switch {
		case x.want == "" && (err != nil || !bytes.Equal(c.read, block)):
			t.Errorf("%s: %v", name, err)
		case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
			t.Errorf("%s: the error is %v, and does not say %q", name, err, x.want)
		case errors.As(err, &status):
			if q.broken != nil {
				t.Errorf("%s: the queue is broken", name)
			}
		case x.want != "" && !errors.Is(err, errclass.Transient):
			t.Errorf("%s: %v is not of class Transient", name, err)
		case x.want != "":
			if _, again := q.run(t.Context(), &command{}); again == nil {
				t.Errorf("%s: a connection that is out of step is used again", name)
			}
		}
	}
}

// A target that says nothing does not hold its caller for ever.
func TestQueue_endsWithItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		_, err := openQueue(t.Context(), ours)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errclass.Transient) {
			t.Errorf("the error is %v", err)
		}
	})
}

func FuzzReadPDU(f *testing.F) {
	f.Add(encodeData(1, flagSuccess, 0, []byte("data")))
	f.Add(encodeResponse(1, 2))
	f.Add(encodeReady(1, 2, 3))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := readPDU(bytes.NewReader(in))
		if err == nil && len(p.header)+len(p.data)+commonBytes > len(in) {
			t.Errorf("%d bytes of header and %d of data out of %d", len(p.header), len(p.data), len(in))
		}
		q := &queue{conn: &scriptedConn{says: bytes.NewReader(in)}, maxWrite: 4096}
		_, _ = q.run(t.Context(), &command{read: make([]byte, 4096)}) // it may fail, and must not panic
		q = &queue{conn: &scriptedConn{says: bytes.NewReader(in)}, maxWrite: 4096}
		_, _ = q.run(t.Context(), &command{write: make([]byte, 4096)})
	})
}
