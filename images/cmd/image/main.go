// Command image builds Varve's container images, the launcher's root, and the guests of tests and demo, without Docker.
//
// image [flags] build [name...]   images into <out>/images, all of them if none is named
// image [flags] guest             kernels, initramfs and disk into <out>/guest
// image [flags] root              the launcher's root, unpacked, as <out>/launcher-root
// image [flags] libnbd            the library with its headers, unpacked, as <out>/libnbd
// image [flags] kubevirt          the images of upstream's KubeVirt, all in <out>/kubevirt.tar
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/varvebackup/varve/images/internal/archive"
	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
	"github.com/varvebackup/varve/images/internal/debian"
	"github.com/varvebackup/varve/images/internal/guest"
	"github.com/varvebackup/varve/images/internal/recipe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run executes one command line. It prints what it built on errOut, one per line.
func run(ctx context.Context, args []string, errOut io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(errOut)
	source := flags.String("source", "images", "the `directory` with the guests and the launcher's configuration")
	out := flags.String("out", "build", "`directory` that results go to")
	cacheDir := flags.String("cache", "", "`directory` of the cache (default: varve/image in the user's cache directory)")
	varve := flags.String("varve", "build/bin/varve", "the static binary: `file`")
	launcher := flags.String("launcher", "build/bin/varve-launcher", "the launcher's binary: `file`")
	kubeVirt := flags.String("kubevirt", "build/kubevirt", "the `directory` of KubeVirt's programs")
	fresh := flags.String("fresh", "", "make roots anew, one time for each new `word` given here")
	if err := flags.Parse(args); err != nil {
		return err
	}
	store := cache.Open(*cacheDir)
	if *cacheDir == "" {
		var err error
		if store, err = cache.Default(); err != nil {
			return err
		}
	}
	log := command.NewLog(errOut, time.Now)
	roots := &debian.Builder{Cache: store, Log: log, Fresh: *fresh}
	k := &recipe.Kitchen{
		Debian:   roots,
		Guest:    &guest.Builder{Roots: roots, Suite: recipe.Suite, Source: filepath.Join(*source, "guest")},
		Config:   filepath.Join(*source, "launcher"),
		Varve:    *varve,
		Launcher: *launcher,
		KubeVirt: recipe.Peer{Programs: *kubeVirt, Config: filepath.Join(*source, "kubevirt")},
	}
	switch flags.Arg(0) {
	case "build":
		return buildImages(ctx, k, *out, flags.Args()[1:])
	case "guest":
		return buildGuests(ctx, k, *out)
	case "root":
		return linkDir(ctx, k, filepath.Join(*out, "launcher-root"), k.LauncherDir)
	case "libnbd":
		return linkDir(ctx, k, filepath.Join(*out, "libnbd"), k.LibnbdDir)
	case "kubevirt":
		return buildKubeVirt(ctx, k, *out)
	}
	return errors.New("say what to do: build [name...], guest, root, libnbd or kubevirt (-help lists the flags)")
}

// buildImages builds images one after the other: each is mostly compression and disk I/O, and they share roots.
func buildImages(ctx context.Context, k *recipe.Kitchen, out string, names []string) error {
	if len(names) == 0 {
		names = recipe.Names()
	}
	dir := filepath.Join(out, "images")
	for _, name := range names {
		built, err := k.Build(ctx, name)
		if err != nil {
			return err
		}
		if err := archive.Publish(dir, archive.Index{name: built}); err != nil {
			return err
		}
		k.Debian.Log.Printf("%s", built.Ref)
	}
	return nil
}

func buildGuests(ctx context.Context, k *recipe.Kitchen, out string) error {
	test, err := k.Guest.Test(ctx)
	if err != nil {
		return err
	}
	deb, err := k.Guest.Debian(ctx)
	if err != nil {
		return err
	}
	for _, path := range []string{test.Kernel, test.Initrd, deb.Kernel, deb.Initrd, deb.Disk} {
		if err := replaceLink(path, filepath.Join(out, "guest", filepath.Base(path))); err != nil {
			return err
		}
	}
	k.Debian.Log.Printf("guests are in %s", filepath.Join(out, "guest"))
	return nil
}

func buildKubeVirt(ctx context.Context, k *recipe.Kitchen, out string) error {
	tar, refs, err := k.BuildKubeVirt(ctx)
	if err != nil {
		return err
	}
	name := filepath.Join(out, "kubevirt.tar")
	if err := replaceLink(tar, name); err != nil {
		return err
	}
	k.Debian.Log.Printf("%s has %s", name, strings.Join(refs, ", "))
	return nil
}

// linkDir makes name a link to a directory that unpack returns.
func linkDir(ctx context.Context, k *recipe.Kitchen, name string, unpack func(context.Context) (string, error)) error {
	dir, err := unpack(ctx)
	if err != nil {
		return err
	}
	if err := replaceLink(dir, name); err != nil {
		return err
	}
	k.Debian.Log.Printf("%s -> %s", name, dir)
	return nil
}

// replaceLink makes name a symbolic link to target, atomically, and replaces an existing link.
func replaceLink(target, name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp := name + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
