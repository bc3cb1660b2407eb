package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/bench/report"
)

// access is one way to read or write a volume.
type access struct {
	id, what string
	// mode is fio's: randread, randwrite, read or write. bytes are those of a request, and depth is how many there are
	// at once.
	mode  string
	bytes int64
	depth int
}

// accesses are in the order in which a round makes them: what the second writes is what the others read.
var accesses = []access{
	{"image-volume-io-first", "4 KiB random writes to a new clone, 16 in flight", "randwrite", 4 * kib, 16},
	{"image-volume-io-write", "1 MiB writes of all of it, one after the other", "write", mib, 1},
	{"image-volume-io-read", "1 MiB reads of all of it, one after the other", "read", mib, 1},
	{"image-volume-io-randread", "4 KiB random reads, 16 in flight", "randread", 4 * kib, 16},
	{"image-volume-io-randwrite", "4 KiB random writes, 16 in flight", "randwrite", 4 * kib, 16},
}

func ioIDs() []string {
	var ids []string
	for _, a := range accesses {
		ids = append(ids, a.id)
	}
	return ids
}

func (a access) isRandom() bool { return a.depth > 1 }

func (a access) writes() bool { return a.mode == "write" || a.mode == "randwrite" }

// unit is IOPS for random access and MiB/s for the other one.
func (a access) unit() string {
	if a.isRandom() {
		return "IOPS"
	}
	return "MiB/s"
}

// measureIO compares the loop device of a clone with a plain file.
func (b *bench) measureIO(ctx context.Context) ([]report.Row, error) {
	if err := b.makeBase(ctx); err != nil {
		return nil, err
	}
	ours, theirs := make([]report.Sample, len(accesses)), make([]report.Sample, len(accesses))
	device := ""
	for round := range b.rounds {
		direct, err := b.measureIORound(ctx, round, ours, theirs)
		if err != nil {
			return nil, err
		}
		device = "loop device of a clone"
		if !direct {
			device += ", which goes through the page cache"
		}
	}
	var rows []report.Row
	for i, a := range accesses {
		what := a.what
		if a.writes() {
			what += ", then an fsync"
		}
		rows = append(rows, report.Larger(a.id, what+"; "+device, a.unit(), ours[i],
			"preallocated file beside it, direct", theirs[i]))
	}
	return rows, nil
}

// isDirect says whether a loop device reads and writes its file past the page cache, as it was asked to.
func isDirect(device string) (bool, error) {
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop", "dio"))
	return strings.TrimSpace(string(text)) == "1", err
}

// measureIORound measures a new clone and a new file. Direct says whether the clone's device does direct I/O.
func (b *bench) measureIORound(ctx context.Context, round int, ours, theirs []report.Sample) (direct bool, err error) {
	if err := b.first.settle(ctx); err != nil {
		return false, err
	}
	plain := b.first.peerFile("plain")
	if err := preallocate(plain, b.imageBytes()); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.Remove(plain)) }()
	volume, err := b.cloneImage(ctx, "volume")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.deleteClones(ctx, []*attached{volume})) }()
	if direct, err = isDirect(volume.device.Path); err != nil {
		return false, err
	}
	for i, a := range accesses {
		measureRate := func(path, file string, to *report.Sample) error {
			if err := errors.Join(b.first.sync(), dropCached(file)); err != nil {
				return err
			}
			rate, err := b.runFio(ctx, a, path)
			*to = append(*to, rate)
			return err
		}
		each := []func() error{
			func() error { return measureRate(volume.device.Path, volume.lease.Path(), &ours[i]) },
			func() error { return measureRate(plain, plain, &theirs[i]) },
		}
		for turn := range each {
			if err := each[(turn+round)%len(each)](); err != nil {
				return false, err
			}
		}
		fmt.Fprintf(b.log, "  %-28s %8.0f %-5s  plain file %8.0f\n", a.id, ours[i][round], a.unit(), theirs[i][round])
	}
	return direct, nil
}

// preallocate makes a file that has all of its blocks.
func preallocate(file string, bytes int64) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, bytes)), f.Sync(), f.Close())
}

// runFio reads or writes a file or a device with direct I/O, and returns the rate in the unit of the access.
func (b *bench) runFio(ctx context.Context, a access, path string) (float64, error) {
	args := []string{
		"fio", "--name=bench", "--filename=" + path, "--rw=" + a.mode, fmt.Sprintf("--bs=%d", a.bytes),
		fmt.Sprintf("--iodepth=%d", a.depth), fmt.Sprintf("--size=%d", b.imageBytes()), "--ioengine=libaio", "--direct=1",
		"--output-format=json", "--randseed=1", "--allow_mounted_write=0",
	}
	if a.isRandom() {
		args = append(args, "--time_based", fmt.Sprintf("--runtime=%d", int(b.ioTime.Seconds())))
	}
	if a.writes() {
		args = append(args, "--end_fsync=1") // a part of the time that fio measures
	}
	out, err := runTool(ctx, args...)
	if err != nil {
		return 0, err
	}
	return parseFio(out, a)
}

// parseFio reads the JSON that fio writes.
func parseFio(out []byte, a access) (float64, error) {
	type direction struct {
		IOPS float64 `json:"iops"`
	}
	var result struct {
		Jobs []struct {
			Error       int `json:"error"`
			Read, Write direction
		}
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return 0, fmt.Errorf("fio's output: %w", err)
	}
	if len(result.Jobs) != 1 || result.Jobs[0].Error != 0 {
		return 0, fmt.Errorf("fio failed: %.500s", out)
	}
	rate := result.Jobs[0].Read.IOPS + result.Jobs[0].Write.IOPS
	if rate == 0 {
		return 0, fmt.Errorf("fio did nothing: %.500s", out)
	}
	if !a.isRandom() {
		rate *= float64(a.bytes) / float64(mib)
	}
	return rate, nil
}
