package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/store/agent"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/wait"
)

// storeIP is the address of the first node's store.
const storeIP = "127.87.0.1"

// measureSync measures how the second disk gets its copy of the image.
func (b *bench) measureSync(ctx context.Context) (_ []report.Row, err error) {
	if err := b.makeBase(ctx); err != nil {
		return nil, err
	}
	from, err := b.basePath(ctx)
	if err != nil {
		return nil, err
	}
	credentials, err := writeCredentials(b.work)
	if err != nil {
		return nil, err
	}
	stop, err := b.serveFirst(ctx, credentials)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	prepare := func() error { return errors.Join(b.second.settle(ctx), dropCached(from)) }
	var ours, theirs usages
	err = inRounds(b.rounds, func() error {
		if err := prepare(); err != nil {
			return err
		}
		u, err := measure(func() error { return b.copyImage(ctx, credentials) })
		if err != nil {
			return err
		}
		ours = append(ours, u)
		b.logUsage("copy from the other store", u)
		return errors.Join(b.second.checkImage(ctx, baseImage, b.content),
			b.second.disk.Delete(ctx, names.Image(baseImage, baseImage)))
	}, func() error {
		if err := prepare(); err != nil {
			return err
		}
		to := b.second.peerFile("peer.raw")
		u, err := measure(func() error {
			if _, err := runTool(ctx, "cp", "--sparse=always", from, to); err != nil {
				return err
			}
			return b.second.sync()
		})
		theirs = append(theirs, u)
		b.logUsage("cp", u)
		return errors.Join(err, os.Remove(to))
	})
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("copy of that image of %d MiB on another disk over NBD with TLS, read back, hashed and sealed",
		b.imageMiB)
	return []report.Row{secondsRow("image-sync", what, ours, "cp --sparse=always from disk to disk, synced", theirs)}, nil
}

// serveFirst serves the first disk as a store does.
func (b *bench) serveFirst(ctx context.Context, credentials string) (stop func() error, err error) {
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: b.first.disk, Name: b.first.name, UUID: b.first.uuid(), Path: b.first.dir})
	serving, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		return peer.Run(serving, peer.Options{
			IP: storeIP, TLSDir: credentials, Disks: disks, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		})
	})
	stop = func() error {
		cancel()
		return group.Wait()
	}
	if err := awaitPort(serving, peer.DefaultPort); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// awaitPort waits until the store listens.
func awaitPort(ctx context.Context, port int) error {
	address := net.JoinHostPort(storeIP, strconv.Itoa(port))
	return wait.For(ctx, time.Minute, "the store at "+address, func(ctx context.Context) (bool, string, error) {
		var d net.Dialer
		connection, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // it does not listen yet
		}
		return true, "", connection.Close()
	})
}

// copyImage copies the image to the second disk as its agent does.
func (b *bench) copyImage(ctx context.Context, credentials string) (err error) {
	image := peer.Copy{Image: baseImage, UUID: baseImage, DiskUUID: string(b.first.uuid())}
	remote, err := peer.OpenImage(ctx, storeIP, peer.DefaultPort, credentials, image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.Close()) }()
	return agent.CopyImage(ctx, b.second.disk, image, remote)
}
