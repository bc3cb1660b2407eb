package qmp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

const greeting = `{"QMP": {"version": {}, "capabilities": []}}` + "\n" + `{"return": {}}` + "\n"

func TestClient_talks(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	c := New(&sent, strings.NewReader(greeting+`
{"event": "JOB_STATUS_CHANGE", "data": {"status": "created"}}
{"event": "JOB_STATUS_CHANGE", "data": {"status": "concluded"}}
{"return": {"n": 7}}
{"error": {"class": "GenericError", "desc": "no such node"}}
{"event": "STOP"}
`))
	var result struct{ N int }
	if err := c.Run("first", map[string]any{"a": 1}, &result); err != nil || result.N != 7 {
		t.Errorf("first: %+v, %v", result, err)
	}
	concluded := func(e Event) bool {
		return e.Name == "JOB_STATUS_CHANGE" && strings.Contains(string(e.Data), "concluded")
	}
	if err := c.Await(concluded); err != nil {
		t.Errorf("an event that came before the answer: %v", err)
	}
	if err := c.Run("second", nil, nil); err == nil || err.Error() != "second: no such node" {
		t.Errorf("what the server refuses: %v", err)
	}
	if err := c.Await(func(e Event) bool { return e.Name == "STOP" }); err != nil {
		t.Errorf("an event that comes later: %v", err)
	}
	if err := c.Await(concluded); !errors.Is(err, io.EOF) {
		t.Errorf("an event for the second time: %v", err)
	}
	if err := c.Run("third", nil, nil); !errors.Is(err, io.EOF) || !strings.HasPrefix(err.Error(), "third: ") {
		t.Errorf("a server that has gone: %v", err)
	}
	var commands []string
	for d := json.NewDecoder(&sent); d.More(); {
		var command struct{ Execute string }
		if err := d.Decode(&command); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, command.Execute)
	}
	if got := strings.Join(commands, " "); got != "qmp_capabilities first second third" {
		t.Errorf("sent: %s", got)
	}
}

func TestClient_keepsFewEvents(t *testing.T) {
	t.Parallel()
	c := New(io.Discard, strings.NewReader(greeting+strings.Repeat(`{"event": "A"}`, 3*maxEvents)+`{"event": "B"}{"return": {}}`))
	if err := c.Run("command", nil, nil); err != nil || len(c.events) != maxEvents {
		t.Errorf("%d events: %v", len(c.events), err)
	}
	if err := c.Await(func(e Event) bool { return e.Name == "B" }); err != nil {
		t.Error(err)
	}
}

// closedPipe is a pipe that nobody reads from any more.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestClient_aServerThatHasGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*Client{
		"between messages":           New(io.Discard, strings.NewReader(greeting)),
		"in the middle of a message": New(io.Discard, strings.NewReader(greeting+`{"return": {`)),
		"before the command":         New(closedPipe{}, strings.NewReader("")),
	} {
		if err := c.Run("command", nil, nil); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClient_namesTheCommandOfAnAnswerThatItCannotRead(t *testing.T) {
	t.Parallel()
	var number int
	c := New(io.Discard, strings.NewReader(greeting+`{"return": "seven"}`))
	if err := c.Run("command", nil, &number); err == nil || !strings.HasPrefix(err.Error(), "command: ") {
		t.Error(err)
	}
}
