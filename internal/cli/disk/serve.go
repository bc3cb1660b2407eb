package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// serveFlags are the flags of `disk serve`.
type serveFlags struct {
	disk, socket, listen string
	cert, key, clientCA  string
	anonymous            bool
	overlay              string
	cacheSize            string
	// cacheBytes is the size that cacheSize says.
	cacheBytes int64
}

func newServeCommand(s *repoaccess.Session) *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use: "serve ID", Short: "Export a disk of a restore point over NBD, without restoring it",
		Long: `Export a disk of a restore point over NBD until the command is interrupted. A QEMU guest can boot
from it, and the kernel can mount it. Blocks are fetched when they are read, and some ahead.

The export is read-only. With --overlay it is writable: what is written goes to that file, and
nothing to the repository. Serve with the same file to continue later. An overlay belongs to one
disk, and to one export at a time. The file with .map after its name is a part of it.

A restore point that is served can be deleted without harm, because a lease keeps its data. A
read-only connection takes no lease: there, a deletion leads to read errors.

TCP requires TLS, and clients need a certificate of --tls-client-ca. With --anonymous, everybody
who reaches the address can read the whole disk, and with --overlay write to it. A unix socket
admits only the user who serves.`,
		Example: `  # Boot from it; QEMU keeps what the guest writes until it ends
  varve disk serve 5e1f9c --socket /run/web.sock
  qemu-system-x86_64 -m 2G -snapshot \
    -drive 'file=nbd+unix:///root?socket=/run/web.sock,format=raw,if=virtio'

  # Boot from it, and keep what the guest writes
  varve disk serve 5e1f9c --disk root --socket /run/web.sock --overlay /var/tmp/web.overlay
  qemu-system-x86_64 -m 2G \
    -drive 'file=nbd+unix:///root?socket=/run/web.sock,format=raw,if=virtio,discard=unmap'

  # Over the network
  varve disk serve 5e1f9c --listen 10.0.0.5:10809 --tls-cert server.pem --tls-key server-key.pem --tls-client-ca ca.pem
  nbdcopy 'nbds://10.0.0.5/root?tls-certificates=/etc/pki/nbd' root.img`,
		Args: cmdline.ExactArgs(1, "the ID of a restore point"), ValidArgsFunction: completePoints(s, 1),
		PreRunE: func(*cobra.Command, []string) error { return f.validateFlags() },
		RunE: func(cmd *cobra.Command, args []string) error {
			return serveDisk(cmd.Context(), s, cmd.ErrOrStderr(), args[0], &f)
		},
	}
	addDiskFlag(s, c, &f.disk)
	c.Flags().StringVar(&f.socket, "socket", "", "the unix socket to listen on; the socket of a server that was killed is replaced")
	c.Flags().StringVar(&f.listen, "listen", "", "the address to listen on, such as 127.0.0.1:10809; needs --tls-cert, --tls-key, and --tls-client-ca or --anonymous")
	c.Flags().StringVar(&f.cert, "tls-cert", "", "the server's certificate and its intermediates, in PEM")
	c.Flags().StringVar(&f.key, "tls-key", "", "the certificate's key, in PEM")
	c.Flags().StringVar(&f.clientCA, "tls-client-ca", "", "admit only clients with a certificate of this authority, in PEM")
	c.Flags().BoolVar(&f.anonymous, "anonymous", false, "admit everybody who reaches the address of --listen")
	c.Flags().StringVar(&f.overlay, "overlay", "", "make the export writable, and store what is written in this file")
	c.Flags().StringVar(&f.cacheSize, "cache-size", "256Mi", "how much of the disk to keep in memory, such as 2Gi; at least 1Mi")
	return c
}

func (f *serveFlags) validateFlags() error {
	switch {
	case (f.socket == "") == (f.listen == ""):
		return failure.Usage("give one of --socket and --listen")
	case f.listen != "" && (f.cert == "" || f.key == ""):
		return failure.Usage("--listen needs --tls-cert and --tls-key: without TLS, anybody on the network could read the disk")
	case f.listen == "" && (f.cert != "" || f.key != "" || f.clientCA != "" || f.anonymous):
		return failure.Usage("--tls-cert, --tls-key, --tls-client-ca and --anonymous are for --listen")
	case f.listen != "" && (f.clientCA == "") == !f.anonymous:
		return failure.Usage("--listen needs --tls-client-ca, which admits clients with a certificate, or --anonymous, which admits everybody who reaches the address: they can read the disk%s", f.writeWarning())
	}
	var err error
	if f.cacheBytes, err = cmdline.ParseCacheSize(f.cacheSize); err != nil {
		return err
	}
	if f.cacheBytes < 1<<20 {
		return failure.Usage("--cache-size %s: give at least 1Mi", f.cacheSize)
	}
	return nil
}

// writeWarning says what clients can do besides reading.
func (f *serveFlags) writeWarning() string {
	if f.overlay != "" {
		return ", and write to it"
	}
	return ""
}

// loadTLSConfig returns the server's TLS configuration, or nil.
func (f *serveFlags) loadTLSConfig() (*tls.Config, error) {
	if f.listen == "" {
		return nil, nil //nolint:nilnil // no TLS
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, failure.Usage("--tls-cert %s, --tls-key: %s", f.cert, err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if f.clientCA == "" {
		return config, nil
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if config.ClientCAs, err = readAuthority("--tls-client-ca", f.clientCA); err != nil {
		return nil, err
	}
	return config, nil
}

func (f *serveFlags) openListener(ctx context.Context) (net.Listener, error) {
	var l net.Listener
	var err error
	if f.listen != "" {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	} else {
		l, err = listenUnix(ctx, f.socket)
	}
	if err != nil {
		return nil, &failure.Error{Err: fmt.Errorf("listen: %w", err), Code: errclass.ExitFailure, Hint: "choose another address, or stop the program that listens there"}
	}
	return l, nil
}

func serveDisk(ctx context.Context, s *repoaccess.Session, w io.Writer, id string, f *serveFlags) error {
	config, err := f.loadTLSConfig()
	if err != nil {
		return err
	}
	// Most of the heap is cached blocks without pointers, so frequent collections cost next to nothing, while rare ones
	// would cost much memory.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	return s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		p, chosen, err := findDisk(ctx, r, id, f.disk)
		if err != nil {
			return err
		}
		return mover.WithLease(ctx, r, p.ID, s.Warn, func() error { return serveExport(ctx, w, r, p, chosen, config, f) })
	})
}

// serveExport serves a disk until ctx ends. It fails if that is because the storage is gone for good.
func serveExport(ctx context.Context, w io.Writer, r *repository.Repository, p *repository.RestorePoint, chosen *repository.Disk, config *tls.Config, f *serveFlags) (err error) {
	export, err := mover.OpenExport(ctx, r, *chosen, mover.ExportOptions{
		CacheBytes: f.cacheBytes, Overlay: f.overlay, Description: fmt.Sprintf("%s of %s at %s", chosen.Name, mover.HistoryName(p.Source), output.FormatTime(p.Time)),
	})
	if err != nil {
		return overlayFailure(err)
	}
	defer func() { err = errors.Join(err, export.Close()) }()
	l, err := f.openListener(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "disk %s of restore point %s: export %s at %s; interrupt to end\n", human.Line(chosen.Name), p.ID, human.Line(chosen.Name), l.Addr())
	err = export.Serve(ctx, l, config, slog.New(slog.NewTextHandler(w, nil)))
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errclass.Expired) {
		return cause
	}
	return err
}

// overlayFailure gives the errors of an overlay their hints.
func overlayFailure(err error) error {
	var overlay *mover.OverlayError
	switch {
	case !errors.As(err, &overlay):
		return err
	case errors.Is(err, errclass.Conflict):
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "stop the other export first, or choose another file"}
	case errors.Is(err, errclass.Invalid):
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "an overlay belongs to the disk that it was made for: choose another file"}
	case errors.Is(err, errclass.Corrupt):
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "an overlay is two files, the second with .map after its name: restore both, or choose another file"}
	default:
		return &failure.Error{Err: err, Code: errclass.ExitFailure, Hint: "the overlay is a file on this machine: check its directory"}
	}
}
