package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
)

// qmpClient speaks QMP with a qemu-storage-daemon over its standard input and output (QEMU's docs/interop/qmp-spec).
type qmpClient struct {
	in      io.WriteCloser
	out     io.ReadCloser
	decoder *json.Decoder
	ready   bool
}

func newQMPClient(cmd *exec.Cmd) (*qmpClient, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &qmpClient{in: in, out: out, decoder: json.NewDecoder(out)}, nil
}

// run executes a command and reads what it returns into result, if that is not nil.
func (q *qmpClient) run(command string, arguments, result any) error {
	if !q.ready && command != "qmp_capabilities" {
		if err := q.run("qmp_capabilities", map[string]any{}, nil); err != nil {
			return err
		}
		q.ready = true
	}
	request := map[string]any{"execute": command, "arguments": arguments}
	if err := json.NewEncoder(q.in).Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		switch err := q.decoder.Decode(&reply); {
		case err != nil:
			return fmt.Errorf("%s: %w", command, err)
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", command, reply.Error.Desc)
		case reply.Return == nil: // the greeting, or an event
		case result == nil:
			return nil
		default:
			return json.Unmarshal(reply.Return, result)
		}
	}
}

// close ends the connection, which ends with the program at the latest.
func (q *qmpClient) close() {
	_, _ = q.in.Close(), q.out.Close() // Waiting for the program may have closed them.
}

// blockNode is a file, or a format in it, that the program has opened.
type blockNode struct {
	Name    string            `json:"node-name"`
	Driver  string            `json:"drv"`
	Bitmaps []blockNodeBitmap `json:"dirty-bitmaps"`
}

type blockNodeBitmap struct {
	Name         string `json:"name"`
	Inconsistent bool   `json:"inconsistent"`
	Recording    bool   `json:"recording"`
}

// blockNodes are all nodes that there are.
func (q *qmpClient) blockNodes() ([]blockNode, error) {
	var all []blockNode
	err := q.run("query-named-block-nodes", map[string]any{"flat": true}, &all)
	return all, err
}

// only refuses an image for which QEMU has opened anything that the chain does not have: its header was changed after it was checked.
func (c *imageChain) only(nodes []blockNode) error {
	for _, n := range nodes {
		known := slices.ContainsFunc(c.nodes(), func(want map[string]any) bool { return want["node-name"] == n.Name && want["driver"] == n.Driver })
		if !known {
			return errorf(ErrConflict, "disk %s was changed while it was opened, and names another file now (driver %s)", c.path, n.Driver)
		}
	}
	return nil
}

// checkBitmap checks that the image itself has the bitmap, and that the bitmap can tell what is in it. A backing file's bitmap has nothing of what
// was written to the image since.
func checkBitmap(image, bitmap string, nodes []blockNode) error {
	var names []string
	for _, n := range nodes {
		if n.Name != topNode {
			continue
		}
		for _, b := range n.Bitmaps {
			if b.Name != bitmap {
				names = append(names, b.Name)
				continue
			}
			if b.Inconsistent {
				return errorf(ErrInvalid, "bitmap %s of %s was not saved when its last user ended, so what changed is not known: remove it and read the whole disk", bitmap, image)
			}
			if !b.Recording {
				return errorf(ErrInvalid, "bitmap %s of %s is disabled and does not record writes, so what changed is not known: remove it and read the whole disk", bitmap, image)
			}
			return nil
		}
	}
	return noBitmap(image, bitmap, names)
}
