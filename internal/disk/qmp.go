package disk

import (
	"errors"
	"io"
	"os/exec"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/qmp"
)

// qmpClient speaks QMP with a qemu-storage-daemon over its standard input and output.
type qmpClient struct {
	*qmp.Client
	in  io.WriteCloser
	out io.ReadCloser
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
	return &qmpClient{Client: qmp.New(in, out), in: in, out: out}, nil
}

// close ends the connection. The end of the program does so, too.
func (q *qmpClient) close() {
	_, _ = q.in.Close(), q.out.Close() // Waiting for the program may have closed them.
}

// blockNode is a file, or a format on top of one, that the program has opened.
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

// blockNodes returns all nodes of the program.
func (q *qmpClient) blockNodes() ([]blockNode, error) {
	var all []blockNode
	err := q.Run("query-named-block-nodes", map[string]any{"flat": true}, &all)
	return all, err
}

// refuseOtherNodes refuses an image for which QEMU has opened anything that is not in the chain: its header was changed after the
// check.
func (c *imageChain) refuseOtherNodes(nodes []blockNode) error {
	for _, n := range nodes {
		known := slices.ContainsFunc(c.blockdevNodes(), func(want map[string]any) bool { return want["node-name"] == n.Name && want["driver"] == n.Driver })
		if !known {
			return errclass.Errorf(errclass.Conflict, "disk %s was changed while it was opened, and names another file now (driver %s)", c.path, n.Driver)
		}
	}
	return nil
}

// checkBitmap checks that the image itself has the bitmap, and that the bitmap knows what changed. A backing file's
// bitmap has nothing of what was written to the image since.
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
				return errclass.Errorf(errclass.Invalid, "bitmap %s of %s was not saved when its last user ended, so what changed is not known: remove it and read the whole disk", bitmap, image)
			}
			if !b.Recording {
				return errclass.Errorf(errclass.Invalid, "bitmap %s of %s is disabled and does not record writes, so what changed is not known: remove it and read the whole disk", bitmap, image)
			}
			return nil
		}
	}
	return noBitmap(image, bitmap, names)
}
