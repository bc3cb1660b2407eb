package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// maxAnswerBytes is the longest answer that is read: a list of some ten thousand logical volumes.
	maxAnswerBytes = 64 << 20
	// callTimeout ends a call of which the target says nothing. Most take milliseconds.
	callTimeout = 30 * time.Second
	// copyTimeout ends a call that copies data within the target. It goes on there: see [client.call].
	copyTimeout = time.Hour
)

// dialer connects to the target: to its socket, or to where it serves data.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// client sends calls of JSON-RPC 2.0 to a target. Each call has a connection of its own, so that a target that was
// started again needs nothing. It is safe for concurrent use.
type client struct {
	dial    dialer
	address string // of the target's unix socket
}

type request struct {
	Version string `json:"jsonrpc"`
	ID      int    `json:"id"`
	Method  string `json:"method"`
	Params  any    `json:"params,omitempty"`
}

type answer struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// call calls a method, and decodes its result into a variable, which may be nil. An error that the target answers is a
// *CallError. If the target cannot be reached, the error has class Transient. If it does not answer to the end, the error
// has class Unknown, because the target has perhaps done, or still does, what it was told. A question that gets no answer
// is Transient.
func (c client) call(ctx context.Context, method string, params, result any) error {
	return c.callWithin(ctx, callTimeout, method, params, result)
}

func (c client) callWithin(ctx context.Context, limit time.Duration, method string, params, result any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("call %s of the SPDK target at %s: %w", method, c.address, err)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := c.dial(ctx, "unix", c.address)
	if err != nil {
		return fmt.Errorf("%w: %w", errclass.Transient, err)
	}
	defer conn.Close()                                          //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends reads and writes
	defer stop()
	uncertain := errclass.Unknown
	if strings.Contains(method, "_get_") || strings.Contains(method, "_wait_") {
		uncertain = errclass.Transient
	}
	data, err := json.Marshal(request{Version: "2.0", ID: 1, Method: method, Params: params})
	if err != nil {
		return err
	}
	if _, err := conn.Write(data); err != nil {
		return fmt.Errorf("%w: %w", uncertain, errors.Join(err, ctx.Err()))
	}
	// The answer has no length, and nothing comes after it: it ends where its JSON ends.
	var a answer
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswerBytes)).Decode(&a); err != nil {
		return fmt.Errorf("%w: %w", uncertain, errors.Join(err, ctx.Err()))
	}
	switch {
	case a.Error != nil:
		return newCallError(method, a.Error.Code, a.Error.Message)
	case a.ID != 1 || len(a.Result) == 0:
		return fmt.Errorf("%w: the answer is none to this call", uncertain)
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(a.Result, result); err != nil {
		return fmt.Errorf("%w: decode the result: %w", uncertain, err)
	}
	return nil
}
