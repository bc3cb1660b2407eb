//go:build controlplane

package main

import (
	"bytes"
	"maps"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// exportedVolume returns the disk of the n-th backup of a machine. In every backup after the first, some blocks have changed.
func exportedVolume(n int) *exporttest.Volume {
	v := exporttest.NewVolume("root", 8<<20+512, n > 1, uint64(n))
	if n == 1 {
		return v
	}
	previous := exportedVolume(n - 1)
	for i, dirty := range v.Dirty {
		if offset := int64(i) * exporttest.BlockBytes; !dirty {
			copy(v.Content[offset:min(offset+exporttest.BlockBytes, v.Description.Bytes)], previous.Content[offset:])
		}
	}
	return v
}

// withExports returns the commands of the scripts. `exports N` starts an export server of the n-th backup, and sets
// $EXPORTS to its address, $CA to its authority as a JSON string, and $TOKEN. `exports stop` stops it. `same N FILE` compares a raw file with the disk
// of the n-th backup.
func withExports(t *testing.T) map[string]func(*testscript.TestScript, bool, []string) {
	t.Helper()
	all := maps.Clone(commands)
	var mu sync.Mutex
	sites := map[string]*exportsite.Site{} // by the directory of the script
	all["exports"] = func(ts *testscript.TestScript, _ bool, args []string) {
		mu.Lock()
		defer mu.Unlock()
		dir := ts.Getenv("WORK")
		if args[0] == "stop" {
			sites[dir].Kill()
			return
		}
		n, err := strconv.Atoi(args[0])
		ts.Check(err)
		site := exportsite.Open(t, exportedVolume(n))
		sites[dir] = site
		_, port, err := net.SplitHostPort(site.Address)
		ts.Check(err)
		ts.Setenv("EXPORTS", "https://localhost:"+port+"/exports")
		ts.Setenv("CA", strconv.Quote(string(site.CA)))
		ts.Setenv("TOKEN", exportsite.Token)
	}
	all["same"] = func(ts *testscript.TestScript, _ bool, args []string) {
		n, err := strconv.Atoi(args[0])
		ts.Check(err)
		got, err := os.ReadFile(ts.MkAbs(args[1]))
		ts.Check(err)
		if want := exportedVolume(n).Content; !bytes.Equal(got, want) {
			ts.Fatalf(verdict.Mark+"%s has other bytes than backup %d", args[1], n)
		}
	}
	return all
}
