package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// monitor is a connection to QEMU's monitor protocol.
type monitor struct {
	to   *json.Encoder
	from *json.Decoder
}

// newMonitor begins a conversation: the server greets, the client says which capabilities it wants.
func newMonitor(to io.Writer, from io.Reader) (*monitor, error) {
	m := &monitor{to: json.NewEncoder(to), from: json.NewDecoder(from)}
	var greeting json.RawMessage
	if err := m.from.Decode(&greeting); err != nil {
		return nil, fmt.Errorf("QMP greeting: %w", err)
	}
	return m, m.execute("qmp_capabilities", map[string]any{})
}

// execute runs a command to its end. Events, which come in between, are of no interest.
func (m *monitor) execute(name string, arguments map[string]any) error {
	if err := m.to.Encode(map[string]any{"execute": name, "arguments": arguments}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for {
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := m.from.Decode(&reply); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if reply.Error != nil {
			return fmt.Errorf("%s: %w", name, errors.New(reply.Error.Desc))
		}
		if reply.Return != nil {
			return nil
		}
	}
}
