// Command diskwriter writes the disks of the data mover's benchmark, in a pod that has their claims.
//
// Usage: diskwriter image FILE SEED BYTES USED makes a raw disk with USED bytes in it, of the kinds that package corpus has; files of the
// system are those of the pod. diskwriter pieces FILE SEED BYTES LENGTH COUNT makes a sparse one with COUNT pieces of random bytes, which
// are scattered over it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/varvebackup/varve/bench/repository/corpus"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/command"
)

func main() { command.Main("diskwriter", run) }

func run(ctx context.Context, args []string) error {
	if len(args) < 3 {
		return errors.New("usage: diskwriter image FILE SEED BYTES USED | diskwriter pieces FILE SEED BYTES LENGTH COUNT")
	}
	numbers := make([]int64, 0, len(args))
	for _, a := range args[2:] {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil || n <= 0 {
			return fmt.Errorf("%q must be a number above 0", a)
		}
		numbers = append(numbers, n)
	}
	switch {
	case args[0] == "image" && len(numbers) == 3:
		return writeImage(ctx, args[1], uint64(numbers[0]), numbers[1], numbers[2]) //nolint:gosec // it is positive
	case args[0] == "pieces" && len(numbers) == 4:
		return writePieces(ctx, args[1], uint64(numbers[0]), numbers[1], numbers[2], int(numbers[3])) //nolint:gosec // it is positive
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func writeImage(ctx context.Context, file string, seed uint64, bytes, used int64) error {
	system, err := corpus.SystemFiles(used / 2)
	if err != nil {
		return err
	}
	return corpus.Write(ctx, file, seed, bytes, corpus.Layout(seed, bytes, corpus.Mix(used, system.Bytes)), system)
}

func writePieces(ctx context.Context, file string, seed uint64, bytes, length int64, count int) (err error) {
	pieces, err := corpus.Pieces(rand.New(rand.NewPCG(seed, 0)), []extent.Extent{{Length: bytes}}, length, length, count)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(bytes); err != nil {
		return err
	}
	noise, content := corpus.Noise(seed, 1), make([]byte, length)
	for _, p := range pieces {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := io.ReadFull(noise, content); err != nil {
			return err
		}
		if _, err := f.WriteAt(content, p.Offset); err != nil {
			return err
		}
	}
	return f.Sync()
}
