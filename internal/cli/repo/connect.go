package repo

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

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// connection is how this machine is connected to a repository.
type connection struct {
	host, user, cacheDir, cacheSize string
	readOnly                        bool
}

func (n *connection) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&n.host, "host", "", "the host to which this machine's restore points belong (default: the machine's name)")
	c.Flags().StringVar(&n.user, "user", "", "the user to whom this machine's restore points belong (default: the user who runs this)")
	c.Flags().BoolVar(&n.readOnly, "read-only", false, "never write to the repository through this connection")
	c.Flags().StringVar(&n.cacheDir, "cache-dir", "", "the directory of the cache (default: varve in the user's cache directory)")
	c.Flags().StringVar(&n.cacheSize, "cache-size", "", "how much data to cache, such as 2Gi; 0 for none (default: 1Gi for S3 or with --cache-dir, else 0)")
}

// place is a repository's location, and how this machine connects to it.
type place struct {
	at      repository.Location
	config  string
	options repository.ConnectOptions
}

// newPlace returns what a LOCATION and its flags say.
func newPlace(s *repoaccess.Session, location string, f *repoaccess.S3Flags, n *connection) (*place, error) {
	if err := s.RequireConnection(); err != nil {
		return nil, err
	}
	at, err := repoaccess.ParseLocation(s.Session, location, f)
	if err != nil {
		return nil, err
	}
	config, err := s.ConfigPath()
	if err != nil {
		return nil, err
	}
	p := &place{at: at, config: config, options: repository.ConnectOptions{Host: n.host, User: n.user, ReadOnly: n.readOnly}}
	return p, n.applyCacheFlags(p)
}

// writeConnection writes the connection's file, and replaces what was there.
func (p *place) writeConnection(ctx context.Context, password string) error {
	return locationFailure(failure.Interrupted(ctx, repository.Connect(ctx, p.config, p.at, password, p.options), "", ""))
}

// applyCacheFlags applies the flags of the cache.
func (n *connection) applyCacheFlags(p *place) error {
	o := &p.options
	if p.at.S3 != nil || n.cacheDir != "" {
		o.CacheBytes = 1 << 30
	}
	if n.cacheSize != "" {
		bytes, err := cmdline.ParseCacheSize(n.cacheSize)
		if err != nil {
			return err
		}
		o.CacheBytes = bytes
	}
	if o.CacheBytes == 0 {
		if n.cacheDir != "" {
			return failure.Usage("--cache-dir and --cache-size 0 exclude each other")
		}
		return nil
	}
	dir := n.cacheDir
	if dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			return failure.Usage("no directory for caches: %s; give --cache-dir, or --cache-size 0", err)
		}
		// Each connection has its own cache: another repository's would be useless, and this connection must not clear
		// it.
		sum := sha256.Sum256([]byte(p.config + "\n" + p.at.String()))
		dir = filepath.Join(caches, "varve", hex.EncodeToString(sum[:8]))
	}
	var err error
	o.CacheDirectory, err = filepath.Abs(dir)
	return err
}

// connectResult is the result of connecting.
type connectResult struct {
	Location   string `json:"location"`
	ConfigFile string `json:"configFile,omitempty"`
}

func (c connectResult) printResult(w io.Writer, form string, created bool) error {
	if form != "" {
		return output.PrintData(w, form, c)
	}
	if created {
		fmt.Fprintf(w, "created a repository in %s\n", c.Location)
	}
	if c.ConfigFile != "" {
		fmt.Fprintf(w, "connected to %s (%s)\n", c.Location, c.ConfigFile)
	}
	return nil
}

func newConnectCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var f repoaccess.S3Flags
	var n connection
	c := &cobra.Command{
		Use: "connect LOCATION", Short: "Connect to an existing repository",
		Long: `Connect to a repository: check the password, and write the repository's location to the file of
--repo-config, which replaces the previous one. The password is not in the file.

` + repoaccess.LocationHelp,
		Example: `  varve repo connect /mnt/backups

  # A second repository, on a server of your own
  varve repo connect s3://minio.lan:9000/backups/varve --s3-ca-file ca.pem --repo-config ~/second.config

  # Read only
  varve repo connect /mnt/backups --read-only`,
		Args: cmdline.ExactArgs(1, "a location: a directory, or s3://endpoint/bucket/prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := newPlace(s, args[0], &f, &n)
			if err != nil {
				return err
			}
			password, err := s.ReadPassword(cmd.Context(), false)
			if err != nil {
				return err
			}
			if err := p.writeConnection(cmd.Context(), password); err != nil {
				return err
			}
			return connectResult{Location: p.at.String(), ConfigFile: p.config}.printResult(cmd.OutOrStdout(), form, false)
		},
	}
	f.AddFlags(c)
	f.AddRoleFlag(c)
	n.addFlags(c)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

// locationFailure is repoaccess.Explain for commands that take a location as argument.
func locationFailure(err error) error {
	switch {
	case errors.Is(err, repository.ErrNoBucket):
		return repoaccess.Explain(err)
	case errors.Is(err, errclass.NotFound):
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: "check the location; `varve repo create` makes a repository there"}
	case errors.Is(err, fs.ErrNotExist):
		return &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: "check the location, and that its file system is mounted; `varve repo create` makes a repository"}
	case errors.Is(err, errclass.Conflict):
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "`varve repo connect` connects to the repository that is there"}
	}
	return repoaccess.Explain(err)
}
