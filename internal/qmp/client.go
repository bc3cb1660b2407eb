// Package qmp speaks QEMU's monitor protocol (QEMU's docs/interop/qmp-spec) with a qemu-storage-daemon that this
// process has started.
//
// It has no deadlines of its own: ending the program or closing the stream ends every wait for an answer. A Client must
// be used by one goroutine only.
package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
)

// maxEvents is how many events are kept until somebody awaits them; older ones are dropped.
const maxEvents = 256

// Event is a message that the server sends without being asked.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// message is any message from a server.
type message struct {
	Event
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// Client is one end of a connection. The first command starts the conversation.
type Client struct {
	to     *json.Encoder
	from   *json.Decoder
	ready  bool
	events []Event
}

// New returns a client that writes its commands to one stream and reads the answers from the other.
func New(to io.Writer, from io.Reader) *Client {
	return &Client{to: json.NewEncoder(to), from: json.NewDecoder(from)}
}

// Run executes a command and reads what it returns into result, if that is not nil. Errors name the command. An error
// that wraps io.EOF means that the server is gone.
func (c *Client) Run(command string, arguments, result any) error {
	if !c.ready {
		c.ready = true
		if err := c.Run("qmp_capabilities", map[string]any{}, nil); err != nil {
			c.ready = false
			return err
		}
	}
	if err := c.to.Encode(map[string]any{"execute": command, "arguments": arguments}); err != nil {
		return fmt.Errorf("%s: %w", command, ofServer(err))
	}
	for {
		m, err := c.nextMessage()
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", command, err)
		case m.Return == nil: // the greeting, or an event
		case result == nil:
			return nil
		default:
			if err := json.Unmarshal(m.Return, result); err != nil {
				return fmt.Errorf("%s: read the answer: %w", command, err)
			}
			return nil
		}
	}
}

// Await waits for an event that wanted accepts. Events that came with the answers to earlier commands count, too. Each
// event counts only once.
func (c *Client) Await(wanted func(Event) bool) error {
	for {
		if i := slices.IndexFunc(c.events, wanted); i >= 0 {
			c.events = c.events[i+1:]
			return nil
		}
		c.events = nil
		if _, err := c.nextMessage(); err != nil {
			return fmt.Errorf("wait for an event: %w", err)
		}
	}
}

// nextMessage reads a message. It keeps an event, and returns the server's refusal as an error.
func (c *Client) nextMessage() (message, error) {
	var m message
	if err := c.from.Decode(&m); err != nil {
		return m, ofServer(err)
	}
	if m.Error != nil {
		return m, errors.New(m.Error.Desc)
	}
	if m.Name != "" {
		c.events = append(c.events[max(0, len(c.events)+1-maxEvents):], m.Event)
	}
	return m, nil
}

// ofServer returns an error of the connection. It wraps io.EOF if the server is gone, be it between two messages, in
// the middle of one, or before it has read the command.
func ofServer(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w (%w)", io.EOF, err)
	}
	return err
}
