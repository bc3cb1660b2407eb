package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/storepb"
)

const (
	// openTimeout is how long another store may take until it has leased an image and said what it has.
	openTimeout = time.Minute
	// connections is how many are open to read one image.
	connections = 4
)

// Image is the copy of an image on a disk of another store, leased until Close.
type Image struct {
	// Bytes is the size of the image.
	Bytes int64
	// Checksum is the SHA-512 that the other store has for it.
	Checksum string
	// Pieces are the hashes of its pieces.
	Pieces []disk.PieceHash

	calls *grpc.ClientConn
	end   context.CancelFunc
	data  *nbd.Client
}

// OpenImage leases a copy that the store at an address has. The lease lasts until Close, or until ctx ends.
func OpenImage(ctx context.Context, ip string, port int, tlsDir string, c Copy) (_ *Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the copy of image %q on disk %s at %s: %w", c.Image, c.DiskUUID, ip, err)
		}
	}()
	config, err := clientTLS(tlsDir)
	if err != nil {
		return nil, err
	}
	calls, err := Dial(ip, port, tlsDir)
	if err != nil {
		return nil, err
	}
	lease, end := context.WithCancel(ctx)
	i := &Image{calls: calls, end: end}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.Close())
		}
	}()
	setup, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	defer context.AfterFunc(setup, end)() // which stops it once all is set up
	described, err := i.expose(lease, c)
	if err != nil {
		return nil, classify(err)
	}
	target := nbd.Target{
		Network: "tcp", Address: net.JoinHostPort(ip, strconv.Itoa(int(described.GetNbdPort()))),
		Export: described.GetExport(), TLS: true, ServerName: names.StoreHost,
	}
	i.data, err = nbd.Dial(setup, target, nbd.Options{TLS: config, Connections: connections})
	if err != nil {
		return nil, err
	}
	if got := i.data.Info().Bytes; got != i.Bytes {
		return nil, errclass.Errorf(errclass.Corrupt, "its export has %d bytes, and not %d", got, i.Bytes)
	}
	return i, nil
}

// Dial makes a connection to the service of another store. It connects with the first call.
func Dial(ip string, port int, tlsDir string) (*grpc.ClientConn, error) {
	config, err := clientTLS(tlsDir)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(ip, strconv.Itoa(port)),
		grpc.WithTransportCredentials(grpccredentials.NewTLS(config)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}))
}

// expose asks for the lease, and reads what comes with it.
func (i *Image) expose(ctx context.Context, c Copy) (*storepb.Lease, error) {
	stream, err := storepb.NewStoreClient(i.calls).BackingImageExpose(ctx, &storepb.BackingImageExposeRequest{
		Name: c.Image, Uuid: c.UUID, DiskUuid: c.DiskUUID,
	})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	lease := first.GetLease()
	i.Bytes, i.Checksum = lease.GetSize(), lease.GetChecksum()
	if i.Bytes <= 0 || i.Bytes > handover.MaxImageBytes {
		return nil, errclass.Errorf(errclass.Corrupt, "the other store says that it has %d bytes", i.Bytes)
	}
	wanted := disk.CountPieces(i.Bytes)
	for len(i.Pieces) < wanted {
		message, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		hashes := message.GetHashes()
		count := len(hashes) / len(disk.PieceHash{})
		if count == 0 || len(hashes)%len(disk.PieceHash{}) != 0 || count > wanted-len(i.Pieces) {
			return nil, errclass.Errorf(errclass.Corrupt, "the other store sent %d bytes of hashes after %d of %d", len(hashes),
				len(i.Pieces), wanted)
		}
		for ; len(hashes) > 0; hashes = hashes[len(disk.PieceHash{}):] {
			i.Pieces = append(i.Pieces, disk.PieceHash(hashes))
		}
	}
	return lease, nil
}

// ReadPiece fills p, which is as long as the piece, with a piece of a copy that the store at an address has, damaged or
// not. The caller compares it with its hash.
func ReadPiece(ctx context.Context, ip string, port int, tlsDir string, c Copy, piece int, p []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read MiB %d of the copy of image %q on disk %s at %s: %w", piece, c.Image, c.DiskUUID, ip, err)
		}
	}()
	calls, err := Dial(ip, port, tlsDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, calls.Close()) }()
	got, err := storepb.NewStoreClient(calls).BackingImagePiece(ctx, &storepb.BackingImagePieceRequest{
		Name: c.Image, Uuid: c.UUID, DiskUuid: c.DiskUUID, Piece: int32(piece), Bytes: int32(len(p)),
	})
	if err != nil {
		return classify(err)
	}
	if len(got.GetData()) != len(p) {
		return errclass.Errorf(errclass.Corrupt, "the other store sent %d bytes, and not %d", len(got.GetData()), len(p))
	}
	copy(p, got.GetData())
	return nil
}

// ReadAt fills p from offset on.
func (i *Image) ReadAt(ctx context.Context, p []byte, offset int64) error {
	return i.data.ReadAt(ctx, p, offset)
}

// Close ends the lease.
func (i *Image) Close() error {
	var err error
	if i.data != nil {
		err = i.data.Close()
	}
	i.end()
	return errors.Join(err, i.calls.Close())
}

// classify gives an error of gRPC the class of its code.
func classify(err error) error {
	for _, class := range []struct {
		code  codes.Code
		class error
	}{
		{codes.NotFound, errclass.NotFound},
		{codes.DataLoss, errclass.Corrupt},
		{codes.FailedPrecondition, errclass.Conflict},
		{codes.ResourceExhausted, errclass.Exhausted},
		{codes.Unavailable, errclass.Transient},
	} {
		if s, ok := status.FromError(err); ok && s.Code() == class.code {
			return errclass.Errorf(class.class, "%s", s.Message())
		}
	}
	return err
}
