package peer

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/storepb"
)

// maxHashBytes is how many bytes of hashes a message has.
const maxHashBytes = 1 << 20

// statusError gives an error the gRPC code of its class.
func statusError(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(errclass.GRPCCode(err), err.Error())
}

func describeCopy(c longhornv1.BackingImageV2CopyInfo) *storepb.BackingImage {
	return &storepb.BackingImage{
		Name: c.Name, Uuid: c.UUID, DiskUuid: c.DiskUUID, Size: c.Size, Progress: int32(c.Progress),
		State: string(c.State), CurrentChecksum: c.CurrentChecksum, Message: c.Message, RealSize: c.RealSize,
	}
}

// BackingImageCreate implements storepb.StoreServer, as do the other calls.
func (s *server) BackingImageCreate(
	ctx context.Context, r *storepb.BackingImageCreateRequest,
) (*storepb.BackingImage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := s.o.Copies.CreateCopy(ctx, Copy{Image: r.GetName(), UUID: r.GetUuid(), DiskUUID: r.GetDiskUuid()})
	if err != nil {
		return nil, statusError(err)
	}
	return describeCopy(c), nil
}

func (s *server) BackingImageDelete(
	ctx context.Context, r *storepb.BackingImageDeleteRequest,
) (*storepb.BackingImageDeleteResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := s.o.Copies.DeleteCopy(ctx, Copy{Image: r.GetName(), UUID: r.GetUuid(), DiskUUID: r.GetDiskUuid()})
	if err != nil {
		return nil, statusError(err)
	}
	return &storepb.BackingImageDeleteResponse{}, nil
}

func (s *server) BackingImageGet(
	_ context.Context, r *storepb.BackingImageGetRequest,
) (*storepb.BackingImage, error) {
	all, _ := s.o.Copies.ListCopies()
	i := slices.IndexFunc(all, func(c longhornv1.BackingImageV2CopyInfo) bool {
		return c.Name == r.GetName() && c.DiskUUID == r.GetDiskUuid()
	})
	if i < 0 {
		return nil, statusError(errclass.Errorf(errclass.NotFound, "disk %q of this node has no copy of image %q",
			r.GetDiskUuid(), r.GetName()))
	}
	return describeCopy(all[i]), nil
}

func (s *server) BackingImageList(
	context.Context, *storepb.BackingImageListRequest,
) (*storepb.BackingImageListResponse, error) {
	all, _ := s.o.Copies.ListCopies()
	return describeCopies(all), nil
}

func describeCopies(all []longhornv1.BackingImageV2CopyInfo) *storepb.BackingImageListResponse {
	var list storepb.BackingImageListResponse
	for _, c := range all {
		list.BackingImages = append(list.BackingImages, describeCopy(c))
	}
	return &list
}

func (s *server) BackingImageWatch(
	_ *storepb.BackingImageWatchRequest, stream grpc.ServerStreamingServer[storepb.BackingImageListResponse],
) error {
	for {
		all, changed := s.o.Copies.ListCopies()
		if err := stream.Send(describeCopies(all)); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return statusError(stream.Context().Err())
		case <-s.stopping:
			return nil
		}
	}
}

func (s *server) BackingImageExpose(
	r *storepb.BackingImageExposeRequest, stream grpc.ServerStreamingServer[storepb.Exposed],
) error {
	ctx := stream.Context()
	c := Copy{Image: r.GetName(), UUID: r.GetUuid(), DiskUUID: r.GetDiskUuid()}
	d, image, err := FindImage(ctx, s.o.Disks, c)
	if err != nil {
		return statusError(err)
	}
	damaged := func(why string) {
		s.o.Copies.NoteDamage(context.WithoutCancel(ctx), c, why)
	}
	pieces, err := d.Pieces(ctx, image.Name)
	if errors.Is(err, errclass.Corrupt) {
		damaged(err.Error())
	}
	if err != nil {
		return statusError(err)
	}
	x, err := openExposure(ctx, newID(), d, image, s.o.Clock)
	if err != nil {
		return statusError(err)
	}
	x.check = newPieceCheck(pieces, image.Bytes, damaged)
	if err := s.addExposure(x); err != nil {
		_ = x.close() // nothing was read or written
		return statusError(err)
	}
	err = s.sendExposure(x, image, pieces, stream)
	if err == nil {
		err = s.awaitEnd(ctx, x)
	}
	if closeErr := s.removeExposure(x); err == nil {
		err = closeErr
	}
	return statusError(err)
}

func (s *server) BackingImagePiece(
	ctx context.Context, r *storepb.BackingImagePieceRequest,
) (*storepb.Piece, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if r.GetBytes() < 1 || r.GetBytes() > disk.PieceBytes {
		return nil, statusError(errclass.Errorf(errclass.Invalid, "a piece has 1 to %d bytes, and not %d", disk.PieceBytes,
			r.GetBytes()))
	}
	d, err := s.o.Disks.Find(disk.UID(r.GetDiskUuid()))
	if err != nil {
		return nil, statusError(err)
	}
	p := make([]byte, r.GetBytes())
	name := names.Image(r.GetName(), r.GetUuid())
	if err := d.ReadPiece(ctx, name, disk.UID(r.GetUuid()), int(r.GetPiece()), p); err != nil {
		if errors.Is(err, errclass.Corrupt) { // it may be news that the copy is damaged
			c := Copy{Image: r.GetName(), UUID: r.GetUuid(), DiskUUID: r.GetDiskUuid()}
			s.o.Copies.NoteDamage(context.WithoutCancel(ctx), c, err.Error())
		}
		return nil, statusError(err)
	}
	return &storepb.Piece{Data: p}, nil
}

// FindImage returns the copy of an image and its disk. An error is NotFound, or Corrupt if the copy is damaged.
func FindImage(ctx context.Context, disks *diskset.Set, c Copy) (disk.Disk, disk.Object, error) {
	d, err := disks.Find(disk.UID(c.DiskUUID))
	if err != nil {
		return nil, disk.Object{}, err
	}
	objects, err := d.List(ctx)
	if err != nil {
		return nil, disk.Object{}, err
	}
	for _, o := range objects {
		if o.Name == names.Image(c.Image, c.UUID) && o.Kind == disk.KindImage && string(o.UID) == c.UUID {
			if o.State != disk.StateReady {
				return nil, disk.Object{}, errclass.Errorf(errclass.Corrupt, "the copy of image %q on disk %s is %s", c.Image,
					d.UUID, o.State)
			}
			return d.Disk, o, nil
		}
	}
	return nil, disk.Object{}, errclass.Errorf(errclass.NotFound, "disk %s has no copy of image %q (%s)", d.UUID, c.Image,
		c.UUID)
}

func (s *server) sendExposure(
	x *exposure, image disk.Object, pieces []disk.PieceHash, stream grpc.ServerStreamingServer[storepb.Exposed],
) error {
	first := &storepb.Exposed{Lease: &storepb.Lease{
		Id: x.id, Export: x.id, NbdPort: int32(s.nbdPort), Size: image.Bytes, Checksum: image.Checksum,
	}}
	if err := stream.Send(first); err != nil {
		return err
	}
	for part := range slices.Chunk(pieces, maxHashBytes/len(disk.PieceHash{})) {
		hashes := make([]byte, 0, maxHashBytes)
		for _, p := range part {
			hashes = append(hashes, p[:]...)
		}
		if err := stream.Send(&storepb.Exposed{Hashes: hashes}); err != nil {
			return err
		}
	}
	return nil
}

// awaitEnd returns when a lease is to end.
func (s *server) awaitEnd(ctx context.Context, x *exposure) error {
	x.noteUse()
	ticker := s.o.Clock.NewTicker(idleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-x.ended:
			return nil
		case <-s.stopping:
			return errclass.Errorf(errclass.Transient, "the store is stopping")
		case <-ticker.C():
			if x.isIdle(idleLimit) {
				return errclass.Errorf(errclass.Expired, "nobody has opened the export for %s", idleLimit)
			}
		}
	}
}

func (s *server) BackingImageUnexpose(
	_ context.Context, r *storepb.BackingImageUnexposeRequest,
) (*storepb.BackingImageUnexposeResponse, error) {
	s.mu.Lock()
	x, ok := s.exposures[r.GetId()]
	delete(s.exposures, r.GetId())
	s.mu.Unlock()
	if ok {
		x.end()
	}
	return &storepb.BackingImageUnexposeResponse{}, nil
}
