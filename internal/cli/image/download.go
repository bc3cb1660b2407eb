package image

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/download"
)

// downloadTimeout is the default of --timeout, enough for hundreds of GiB on a slow line.
const downloadTimeout = 24 * time.Hour

// toStdout is the FILE that means standard output.
const toStdout = "-"

func newDownloadCommand(s *resource.Session) *cobra.Command {
	var force bool
	var w resource.Waiting
	c := &cobra.Command{
		Use: "download NAME [FILE]", Short: "Bring an image to a file on this computer",
		Long: `Bring a ready image to a file on this computer: NAME.raw, unless you give another one. The file is
raw, and zeroes take no space in it. It comes through the API server from a node with a ready copy,
and from another one if that fails.

Each MiB is compared with its hash, and the whole with the SHA-512 of the image. Until then, what
is there is in a file beside FILE, whose name ends in .part. If the command ends early, the same
command goes on there. It never uses the part of another image.

If FILE is -, the image goes to standard output, and cannot be continued. Use what you got only if
the command ended without an error.

It takes the cluster role varve-image-download in namespace varve.`,
		Example: `  varve image download golden
  varve image download golden /srv/golden.raw --force
  varve image download golden - | zstd >golden.raw.zst`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 1 || len(args) == 2 {
				return nil
			}
			return failure.Misused(c, "%s needs the name of an image, and may have a file, and got %s", c.CommandPath(),
				human.Count(len(args), "argument"))
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // files
			}
			return s.CompleteArgs(newList, 1)(c, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			path := download.DefaultFile(args[0])
			if len(args) == 2 {
				path = args[1]
			}
			if path == "" || (path == toStdout && force) {
				return failure.Usage("FILE %q: give the name of a file, or - without --force", path)
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b, err := getImage(cmd.Context(), c, args[0])
			if err != nil {
				return explainDownload(err)
			}
			to, closeTo, err := openDestination(b, path, force, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeTo()) }()
			d, err := newDownloader(s, c, b, to, path, clock.RealClock{})
			if err != nil {
				return err
			}
			err = w.RunEach(cmd.Context(), s, "image "+b.Name+" is in "+path, "image describe "+b.Name, d.downloadImage)
			if err != nil || path == toStdout {
				return err
			}
			return output.PrintDone(cmd.OutOrStdout(), b, "downloaded to "+human.Line(path))
		},
	}
	c.Flags().BoolVar(&force, "force", false, "replace FILE if it exists, once the image is whole")
	w.AddFlagsAlways(c, downloadTimeout)
	return c
}

// openDestination opens what the user wants the image in.
func openDestination(
	b *longhornv1.BackingImage, path string, force bool, stdout io.Writer,
) (to download.Destination, closeTo func() error, err error) {
	if b.Status.Size <= 0 || b.Status.Checksum == "" {
		return nil, nil, failure.New("wait until it is ready", "image %s is not ready yet: %s", b.Name,
			cmp.Or(readMessage(b), "no copy has been made"))
	}
	if path == toStdout {
		return &download.Stream{To: stdout}, func() error { return nil }, nil
	}
	file, err := download.OpenFile(path, b.Status.Checksum, force)
	if err != nil {
		return nil, nil, explainLocal(err, path)
	}
	return file, file.Close, nil
}

// explainLocal says what to do about an error of the file.
func explainLocal(err error, path string) error {
	hint := ""
	switch {
	case errors.Is(err, download.ErrExists):
		hint = "give another FILE, or --force to replace it"
	case errors.Is(err, errclass.Exhausted):
		hint = "make room in " + filepath.Dir(path) + ", and run the same command again: it goes on where it stopped"
	case errors.Is(err, errclass.Conflict):
		hint = "wait for the other command, or give another FILE"
	}
	return &failure.Error{Err: fmt.Errorf("write %w", err), Code: errclass.ExitCode(err), Hint: hint}
}

// explainDownload names the rights that a download takes.
func explainDownload(err error) error {
	const hint = "ask for the cluster role varve-image-download in the namespace of the images: see docs/images.md"
	if err != nil && cluster.Classify(err) != cluster.Forbidden && errors.Is(err, errclass.Denied) {
		var explained *failure.Error
		if !errors.As(err, &explained) {
			return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: hint}
		}
	}
	return failure.ExplainForbidden(err, hint)
}
