//go:build controlplane || root

package agent

import (
	"fmt"
	"os"
	"sync/atomic"
)

// addresses counts those that nodes have been given.
var addresses atomic.Int32

// newAddress returns an address of this machine that no other node has, nor one of another process of this test.
func newAddress() string {
	pid, number := os.Getpid(), addresses.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 20+pid/256%200, pid%256, 1+number%250)
}
