// Command probe is the only program in the end-to-end tests' image: a server, a client to reach it, and a writer and reader of volumes.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// commands are what the program can do, each with its number of arguments.
var commands = []struct {
	name      string
	arguments int
	run       func(args []string) error
}{
	{"serve", 0, func([]string) error { return serveHostName() }},
	{"get", 1, func(args []string) error { return getURL(args[0]) }},
	{"resolve", 1, func(args []string) error { return printAddresses(args[0]) }},
	{"fill", 2, func(args []string) error { return fillWithNoise(args[0], args[1]) }},
	{"sum", 2, func(args []string) error { return printSum(args[0], args[1]) }},
	{"remove", 1, func(args []string) error { return removeFile(args[0]) }},
	{"size", 1, func(args []string) error { return printSize(args[0]) }},
	{"append", 2, func(args []string) error { return appendRecords(args[0], args[1]) }},
	{"count", 2, func(args []string) error { return countRecords(args[0], args[1]) }},
	{"count", 1, func(args []string) error { return printLogCount(args[0]) }},
	{"capacity", 1, func(args []string) error { return printCapacity(args[0]) }},
	{"tmpfs", 1, func(args []string) error { return mountTmpfs(args[0]) }},
}

func run(args []string) error {
	for _, c := range commands {
		if len(args) == c.arguments+1 && args[0] == c.name {
			return c.run(args[1:])
		}
	}
	return fmt.Errorf("usage: probe serve | get URL | resolve NAME | fill PATH BYTES | sum PATH BYTES | remove PATH | "+
		"size PATH | append A B | count A [B] | capacity PATH | tmpfs PATH: %q", args)
}

func printAddresses(name string) error {
	addresses, err := net.DefaultResolver.LookupHost(context.Background(), name)
	fmt.Print(addresses)
	return err
}

func printLogCount(path string) error {
	n, err := countLog(path)
	fmt.Print(n)
	return err
}

func mountTmpfs(path string) error {
	return errors.Join(os.MkdirAll(path, 0o755), syscall.Mount("tmpfs", path, "tmpfs", 0, ""))
}

// serveHostName answers every request on port 8080 with the host name, until SIGTERM.
func serveHostName() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Println("serving as", name)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	return http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := io.WriteString(w, name); err != nil {
			fmt.Println("answer:", err)
		}
	}))
}

func getURL(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// fillWithNoise writes the given number of bytes of noise, the same at each call, and prints their SHA-256.
func fillWithNoise(path, bytes string) error {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	h := sha256.New()
	noise := io.LimitReader(rand.NewChaCha8([32]byte{1}), n)
	_, err = io.Copy(io.MultiWriter(f, h), noise)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Printf("%x", h.Sum(nil))
	return nil
}

// printSum prints the SHA-256 of the first bytes of path.
func printSum(path, bytes string) error {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.CopyN(h, f, n)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Printf("%x", h.Sum(nil))
	return nil
}

// removeFile deletes a file and syncs, so that the file system discards the freed blocks on its device.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	syscall.Sync()
	return nil
}

// printSize prints the size in bytes of a device or a file, found by seeking to its end.
func printSize(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	n, err := f.Seek(0, io.SeekEnd)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Print(n)
	return nil
}
