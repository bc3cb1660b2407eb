// Package debian makes Debian roots with mmdebstrap, from the archive that this machine uses.
//
// A root is cached by the request for it: suite, variant, packages and hooks. So a newer package in the archive does
// not change an image unnoticed; "image -fresh" asks the archive again. The same request to the same state of the
// archive gives the same bytes.
package debian

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
	"github.com/varvebackup/varve/images/internal/layer"
	"github.com/varvebackup/varve/images/internal/mirror"
)

// MirrorVariable names the environment variable that overrides the archive's address.
const MirrorVariable = "VARVE_DEBIAN_MIRROR"

// keyring has the keys that sign the archive of every suite. Package debian-archive-keyring provides it.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// format is part of every key. Raise it when this package writes something else for the same request.
const format = "1"

// Root describes the Debian root to make.
type Root struct {
	Suite    string
	Variant  string   // mmdebstrap's variant: "minbase", or "extract" to unpack packages without installing them.
	Packages []string // In addition to those of the variant.
	Hooks    []Hook   // They run in order on the installed root, before it is packed.
	Drop     func(name string) bool
	// DropVersion tells the cache that Drop has changed: the cache cannot compare functions.
	DropVersion string
}

// Hook changes a root. It is a program that is called with the root's directory as its last argument.
type Hook struct {
	Command string // A shell command. "$1" is the root's directory.
	Inputs  string // A hash of everything that the command reads. It is part of the cache's key.
}

// Builder makes roots and keeps them in the cache.
type Builder struct {
	Cache *cache.Cache
	Log   *command.Log
	Fresh string // Part of the key: a new value makes a new root.
}

// Tar returns the path of the root as a tar file, and makes it if it is not in the cache. kind names it in the cache and in messages.
func (b *Builder) Tar(ctx context.Context, kind string, root Root) (string, error) {
	dir, err := b.Cache.Dir(ctx, kind+"-tar", b.cacheKey(root), func(dir string) error {
		return b.Log.Step(fmt.Sprintf("Debian %s root for %s (%d packages asked for)", root.Suite, kind, len(root.Packages)),
			func() error { return b.bootstrap(ctx, dir, root) })
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "root.tar"), nil
}

// Dir returns the root unpacked as a directory. It is for reading and for chroots. Images are made from the tar, so
// changes in the directory never reach an image.
func (b *Builder) Dir(ctx context.Context, kind string, root Root) (string, error) {
	tarPath, err := b.Tar(ctx, kind, root)
	if err != nil {
		return "", err
	}
	return b.Cache.Dir(ctx, kind+"-dir", b.cacheKey(root), func(dir string) error {
		_, err := command.Run(ctx, nil, "tar", "-x", "--numeric-owner", "--xattrs-include=*", "-C", dir, "-f", tarPath)
		return err
	})
}

func (b *Builder) cacheKey(root Root) string {
	inputs := []string{format, b.Fresh, root.Suite, root.Variant, strings.Join(root.Packages, ","), root.DropVersion}
	for _, h := range root.Hooks {
		inputs = append(inputs, h.Inputs)
	}
	return cache.Key(inputs...)
}

// Key returns the key that identifies the root's content in the cache.
func (b *Builder) Key(root Root) string { return b.cacheKey(root) }

func (b *Builder) bootstrap(ctx context.Context, dir string, root Root) error {
	uri, err := archiveAddress()
	if err != nil {
		return err
	}
	raw := filepath.Join(dir, "raw.tar")
	args := []string{
		"--variant=" + root.Variant, "--format=tar", "--keyring=" + keyring,
		`--aptopt=Acquire::Retries "5"`,
		"--include=" + strings.Join(root.Packages, ","),
	}
	for _, h := range root.Hooks {
		args = append(args, "--customize-hook="+h.Command)
	}
	args = append(args, root.Suite, raw, fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, uri, root.Suite))
	// mmdebstrap takes all times that it writes from SOURCE_DATE_EPOCH.
	if _, err := command.Run(ctx, []string{"SOURCE_DATE_EPOCH=0", "LC_ALL=C.UTF-8"}, "mmdebstrap", args...); err != nil {
		return err
	}
	if err := filterTar(filepath.Join(dir, "root.tar"), raw, root.Drop); err != nil {
		return err
	}
	return os.Remove(raw)
}

// archiveAddress returns the address of the Debian archive.
func archiveAddress() (string, error) {
	if uri := os.Getenv(MirrorVariable); uri != "" {
		return uri, nil
	}
	return mirror.Find(os.DirFS("/etc/apt"))
}

func filterTar(dst, src string, drop func(string) bool) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, in.Close()) }()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, out.Close()) }()
	return layer.Filter(out, in, drop)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
