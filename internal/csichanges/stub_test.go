package csichanges

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/varvebackup/varve/test/authority"
)

// StubSnapshotMetadata stands for the SnapshotMetadata service of a CSI driver: no driver with one can be had here. It speaks the real
// protocol over TLS, and answers what a test tells it.
type StubSnapshotMetadata struct {
	api.UnimplementedSnapshotMetadataServer

	// answer sends a stream's messages. attempt counts streams, from 1.
	answer func(r request, attempt int, send func(api.BlockMetadataType, int64, ...*api.BlockMetadata) error) error

	mutex    sync.Mutex
	requests []request
}

// request is one of either method.
type request struct {
	Token, Namespace, Base, Snapshot string
	From                             int64

	done <-chan struct{}
}

func (s *StubSnapshotMetadata) serve(r request, send func(api.BlockMetadataType, int64, ...*api.BlockMetadata) error) error {
	s.mutex.Lock()
	s.requests = append(s.requests, r)
	attempt := len(s.requests)
	s.mutex.Unlock()
	return s.answer(r, attempt, send)
}

// GetMetadataAllocated implements api.SnapshotMetadataServer.
func (s *StubSnapshotMetadata) GetMetadataAllocated(r *api.GetMetadataAllocatedRequest, stream grpc.ServerStreamingServer[api.GetMetadataAllocatedResponse]) error {
	return s.serve(request{Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Snapshot: r.GetSnapshotName(), From: r.GetStartingOffset(), done: stream.Context().Done()},
		func(kind api.BlockMetadataType, size int64, ranges ...*api.BlockMetadata) error {
			return stream.Send(&api.GetMetadataAllocatedResponse{BlockMetadataType: kind, VolumeCapacityBytes: size, BlockMetadata: ranges})
		})
}

// GetMetadataDelta implements api.SnapshotMetadataServer.
func (s *StubSnapshotMetadata) GetMetadataDelta(r *api.GetMetadataDeltaRequest, stream grpc.ServerStreamingServer[api.GetMetadataDeltaResponse]) error {
	return s.serve(request{
		Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Base: r.GetBaseSnapshotId(), Snapshot: r.GetTargetSnapshotName(), From: r.GetStartingOffset(), done: stream.Context().Done(),
	}, func(kind api.BlockMetadataType, size int64, ranges ...*api.BlockMetadata) error {
		return stream.Send(&api.GetMetadataDeltaResponse{BlockMetadataType: kind, VolumeCapacityBytes: size, BlockMetadata: ranges})
	})
}

// start serves the stub at an address of this machine until the test ends.
func (s *StubSnapshotMetadata) start(t *testing.T) *Service {
	t.Helper()
	a := authority.New(t)
	ca, err := os.ReadFile(filepath.Join(a.Files(t), "ca-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var listening net.ListenConfig
	l, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, "snapshot-metadata", "localhost")}, MinVersion: tls.VersionTLS12,
	})))
	api.RegisterSnapshotMetadataServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it returns when it is stopped
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return &Service{Address: l.Addr().String(), CA: ca, Audience: "stub"}
}

// client asks the stub, and loses patience soon.
func (s *StubSnapshotMetadata) client(t *testing.T) *Client {
	t.Helper()
	token := func(_ context.Context, audience string) (string, error) { return "token-for-" + audience, nil }
	c, err := NewClient(s.start(t), token, Limits{Idle: 200 * time.Millisecond, Attempts: 3, Pause: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
