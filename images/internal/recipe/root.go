package recipe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
)

// LauncherDir returns the launcher's root with its configuration, without Varve's binaries, unpacked. It is used as a
// chroot for work on libvirt code without a cluster.
func (k *Kitchen) LauncherDir(ctx context.Context) (string, error) {
	root := LauncherRoot()
	base, err := k.Debian.Tar(ctx, launcherKind, root)
	if err != nil {
		return "", err
	}
	config, err := cache.HashTree(k.Config)
	if err != nil {
		return "", err
	}
	key := cache.Key(format, k.Debian.Key(root), config)
	dir, err := k.Debian.Cache.Dir(ctx, launcherKind, key, func(dir string) error {
		return k.Debian.Log.Step("unpack the launcher's root", func() error { return unpackRoot(ctx, dir, base, k.Config) })
	})
	if err != nil {
		return "", fmt.Errorf("launcher root: %w", err)
	}
	return dir, nil
}

// unpackRoot unpacks the tar into dir and copies the files of the tree config over it.
func unpackRoot(ctx context.Context, dir, tar, config string) error {
	if _, err := command.Run(ctx, nil, "tar", "-x", "--numeric-owner", "--xattrs-include=*", "-C", dir, "-f", tar); err != nil {
		return err
	}
	entries, err := treeEntries(config)
	if err != nil {
		return err
	}
	for _, e := range entries {
		content, err := os.ReadFile(e.Path)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, e.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, e.Mode); err != nil {
			return err
		}
		// A file of the tar that was there keeps its mode.
		if err := os.Chmod(path, e.Mode); err != nil {
			return err
		}
	}
	return nil
}
