// Package snapshotmetadata has a stub of the SnapshotMetadata service of a CSI driver (KEP 3314), for tests of what asks one.
package snapshotmetadata

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/varvebackup/varve/test/authority"
)

// StubSnapshotMetadata stands for the SnapshotMetadata service of a CSI driver: no driver with one can be had here. It speaks the real
// protocol over TLS, and answers what a test tells it.
type StubSnapshotMetadata struct {
	api.UnimplementedSnapshotMetadataServer

	// Answer sends a stream's messages. attempt counts streams, from 1.
	Answer func(r Request, attempt int, send Sender) error

	mutex    sync.Mutex
	requests []Request
}

// Sender sends a message: the type of its ranges, the size of the volume, and the ranges.
type Sender = func(api.BlockMetadataType, int64, ...*api.BlockMetadata) error

// Request is one of either method. Base is "" if it asks for what is allocated.
type Request struct {
	Token, Namespace, Base, Snapshot string
	From                             int64

	// Done is closed when nobody waits for the answer any more.
	Done <-chan struct{}
}

// Range returns a range of a message.
func Range(offset, length int64) *api.BlockMetadata {
	return &api.BlockMetadata{ByteOffset: offset, SizeBytes: length}
}

// Seen returns what was asked so far, without Done.
func (s *StubSnapshotMetadata) Seen() []Request {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	seen := slices.Clone(s.requests)
	for i := range seen {
		seen[i].Done = nil
	}
	return seen
}

func (s *StubSnapshotMetadata) serve(r Request, send Sender) error {
	s.mutex.Lock()
	s.requests = append(s.requests, r)
	attempt := len(s.requests)
	s.mutex.Unlock()
	return s.Answer(r, attempt, send)
}

// GetMetadataAllocated implements api.SnapshotMetadataServer.
func (s *StubSnapshotMetadata) GetMetadataAllocated(r *api.GetMetadataAllocatedRequest, stream grpc.ServerStreamingServer[api.GetMetadataAllocatedResponse]) error {
	return s.serve(Request{Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Snapshot: r.GetSnapshotName(), From: r.GetStartingOffset(), Done: stream.Context().Done()},
		func(kind api.BlockMetadataType, size int64, ranges ...*api.BlockMetadata) error {
			return stream.Send(&api.GetMetadataAllocatedResponse{BlockMetadataType: kind, VolumeCapacityBytes: size, BlockMetadata: ranges})
		})
}

// GetMetadataDelta implements api.SnapshotMetadataServer.
func (s *StubSnapshotMetadata) GetMetadataDelta(r *api.GetMetadataDeltaRequest, stream grpc.ServerStreamingServer[api.GetMetadataDeltaResponse]) error {
	return s.serve(Request{
		Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Base: r.GetBaseSnapshotId(), Snapshot: r.GetTargetSnapshotName(), From: r.GetStartingOffset(), Done: stream.Context().Done(),
	}, func(kind api.BlockMetadataType, size int64, ranges ...*api.BlockMetadata) error {
		return stream.Send(&api.GetMetadataDeltaResponse{BlockMetadataType: kind, VolumeCapacityBytes: size, BlockMetadata: ranges})
	})
}

// Start serves the stub until the test ends. It returns its address on this machine, and the certificate of its authority.
func (s *StubSnapshotMetadata) Start(tb testing.TB) (address string, authorities []byte) {
	tb.Helper()
	a := authority.New(tb)
	ca, err := os.ReadFile(filepath.Join(a.Files(tb), "ca-cert.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	var listening net.ListenConfig
	l, err := listening.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{a.Issue(tb, "snapshot-metadata", "localhost")}, MinVersion: tls.VersionTLS12,
	})))
	api.RegisterSnapshotMetadataServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it returns when it is stopped
	}()
	tb.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return l.Addr().String(), ca
}
