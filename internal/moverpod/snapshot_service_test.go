package moverpod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/snapshotmetadata"
	"github.com/varvebackup/varve/test/verdict"
)

// An answer that begins and never ends well is not used in part: what it has not said yet would be left out.
func TestSnapshotUpload_believesNoPartOfAnAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.DataLoss, codes.NotFound, codes.Canceled} {
		s := newCSIStorage(t)
		s.stores(t, s.snapshotPod(t, "monday"))
		s.write(12*mib, noise(mib, 2))
		p := s.snapshotPod(t, "tuesday")
		s.answer = func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
			var err error
			if r.From == 0 {
				err = send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(mib, 512))
			}
			return errors.Join(err, status.Error(code, "the stub breaks"))
		}
		report := s.stores(t, p)
		if report.FullReason != datamove.FullNoSnapshotMetadata || !strings.Contains(report.FullDetail, code.String()) || report.ReadBytes != 16*mib {
			t.Errorf("%s: %+v", code, report)
		}
	}
}

// A service that is away for a moment costs no incremental.
func TestSnapshotUpload_isIncrementalWhenTheServiceComesBack(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(12*mib, noise(mib, 2))
	p := s.snapshotPod(t, "tuesday")
	p.limits.metadata.Attempts = 3
	failures := 2
	s.answer = func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
		if failures--; failures >= 0 {
			return status.Error(codes.Unavailable, "it starts")
		}
		return s.tell(r, send)
	}
	if report := s.stores(t, p); report.FullReason != "" || report.FullDetail != "" || report.IncrementalBytes != mib {
		t.Errorf("%+v", report)
	}
}

// A cancel does not wait until the service is asked again.
func TestSnapshotUpload_isCanceledBetweenAttempts(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	p := s.snapshotPod(t, "monday")
	p.limits.metadata.Pause, p.limits.grace = time.Hour, time.Hour
	s.answer = func(snapshotmetadata.Request, snapshotmetadata.Sender) error {
		p.api.cancel()
		return status.Error(codes.Unavailable, "no")
	}
	p.run(t, datamove.Canceled)
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

// A process that comes after one that died while it asked asks once more, and then reads everything.
func TestSnapshotUpload_isResumedWhileTheServiceFails(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	p := s.snapshotPod(t, "monday")
	p.limits.metadata.Pause = time.Hour
	s.answer = func(snapshotmetadata.Request, snapshotmetadata.Sender) error {
		return status.Error(codes.Unavailable, "no")
	}
	for range 2 {
		ctx, die := context.WithCancel(t.Context())
		asked := len(s.asked())
		ended := p.start(ctx)
		for len(s.asked()) == asked {
			time.Sleep(time.Millisecond)
		}
		die()
		if err := <-ended; err == nil {
			t.Fatal("an interrupted mover has ended as if it had nothing to do")
		}
		if _, ok := p.api.report(t); ok {
			t.Fatal("an interrupted mover has reported")
		}
	}
	p.limits.metadata.Pause = time.Millisecond
	if report := s.stores(t, p); report.FullReason != datamove.FullNoSnapshotMetadata || report.ReadBytes != 16*mib {
		t.Errorf("%+v", report)
	}
	if points := s.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
}
