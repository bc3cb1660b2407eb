package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/varvebackup/varve/internal/repository"
)

// connection is how this machine is connected to a repository.
type connection struct {
	host, user, cacheDir, cacheSize string
	readOnly                        bool
}

func (n *connection) flags(c *cobra.Command) {
	c.Flags().StringVar(&n.host, "host", "", "the host that this machine's restore points are of (default the machine's name)")
	c.Flags().StringVar(&n.user, "user", "", "the user that this machine's restore points are of (default who runs this)")
	c.Flags().BoolVar(&n.readOnly, "read-only", false, "never write to the repository through this connection")
	c.Flags().StringVar(&n.cacheDir, "cache-dir", "", "where a cache is kept (default varve in the user's directory of caches)")
	c.Flags().StringVar(&n.cacheSize, "cache-size", "", "how much data is cached, such as 2Gi; 0: none (default 1Gi for S3, 0 for a directory)")
}

// options are what the flags ask for, of a connection of config to at.
func (n *connection) options(at repository.Location, config string) (repository.ConnectOptions, error) {
	o := repository.ConnectOptions{Host: n.host, User: n.user, ReadOnly: n.readOnly}
	if at.S3 != nil {
		o.CacheBytes = 1 << 30
	}
	if n.cacheSize != "" {
		q, err := resource.ParseQuantity(n.cacheSize)
		if err != nil || q.Sign() < 0 {
			return o, usage("--cache-size %s: write a size such as 512Mi or 2Gi, or 0", n.cacheSize)
		}
		o.CacheBytes = q.Value()
	}
	if o.CacheBytes == 0 {
		return o, nil
	}
	dir := n.cacheDir
	if dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			return o, usage("no directory for caches: %s; give --cache-dir, or --cache-size 0", err)
		}
		// Each connection has its own: that of another repository would be of no use, and is not this one's to clear.
		sum := sha256.Sum256([]byte(config + "\n" + at.String()))
		dir = filepath.Join(caches, "varve", hex.EncodeToString(sum[:8]))
	}
	var err error
	o.CacheDirectory, err = filepath.Abs(dir)
	return o, err
}

// connected is the result of connecting.
type connected struct {
	Location   string `json:"location"`
	ConfigFile string `json:"configFile,omitempty"`
}

func (c connected) print(w io.Writer, form string, created bool) error {
	if form != "" {
		return printData(w, form, c)
	}
	if created {
		fmt.Fprintf(w, "created a repository in %s\n", c.Location)
	}
	if c.ConfigFile != "" {
		fmt.Fprintf(w, "connected to %s (%s)\n", c.Location, c.ConfigFile)
	}
	return nil
}

func (s *session) repoConnect() *cobra.Command {
	var form string
	var f s3Flags
	var n connection
	c := &cobra.Command{
		Use: "connect LOCATION", Short: "Connect to a repository that is there",
		Long: `Connect to a repository: check the password, and write where the repository is to the file of
--repo-config, in place of what was there. The password is not in it.

` + locationHelp,
		Example: `  varve repo connect /mnt/backups

  # A second repository, on a server of one's own
  varve repo connect s3://minio.lan:9000/backups/varve --s3-ca-file ca.pem --repo-config ~/second.config

  # For looking only
  varve repo connect /mnt/backups --read-only`,
		Args: exactArgs(1, "a location: a directory, or s3://endpoint/bucket/prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := s.location(args[0], &f)
			if err != nil {
				return err
			}
			config, err := s.repoConfig()
			if err != nil {
				return err
			}
			o, err := n.options(at, config)
			if err != nil {
				return err
			}
			password, err := s.password(cmd.Context(), false)
			if err != nil {
				return err
			}
			if err := connectRepository(cmd.Context(), config, at, password, o); err != nil {
				return err
			}
			return connected{Location: at.String(), ConfigFile: config}.print(cmd.OutOrStdout(), form, false)
		},
	}
	f.flags(c)
	n.flags(c)
	outputFlag(c, &form, asJSON, asYAML)
	return c
}

// connectRepository replaces config only when the new connection works: a wrong password must not cost the connection that was there.
func connectRepository(ctx context.Context, config string, at repository.Location, password string, o repository.ConnectOptions) error {
	if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
		return failed("", "connect: %w", err)
	}
	// In the same directory: the path of the cache is kept relative to it.
	file, err := os.CreateTemp(filepath.Dir(config), ".connect-*.config")
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return failed("", "connect: %w", err)
	}
	candidate := file.Name()
	if err := repository.Connect(ctx, candidate, at, password, o); err != nil {
		if left := os.Remove(candidate); !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
		return locationFailure(err)
	}
	if err := os.Rename(candidate, config); err != nil {
		return failed("", "connect: %w", err)
	}
	return nil
}

// locationFailure is repositoryFailure for commands that have a location as argument.
func locationFailure(err error) error {
	if errors.Is(err, repository.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &failure{err: err, code: CodeNotFound, hint: "check the location; `varve repo create` makes a repository there"}
	}
	if errors.Is(err, repository.ErrConflict) {
		return &failure{err: err, code: CodeRefused, hint: "`varve repo connect` connects to what is there"}
	}
	return repositoryFailure(err)
}
