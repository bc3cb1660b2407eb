// Package snapshotmetadata says which parts of a snapshot have data, and which differ from an earlier snapshot of the
// same volume: Kubernetes' SnapshotMetadata service (KEP 3314), as external-snapshot-metadata's sidecar serves it for
// other drivers. So a backup reads what has changed, and nothing else.
//
// Every store serves it, and one Service leads to any of them. The client shows a token of a service account for the
// audience names.Driver, and must be allowed to get the VolumeSnapshot. The store that has the snapshot's disk knows
// the answer: any other store asks it over the connection of the stores (package peer), and passes the answer on.
package snapshotmetadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
)

const (
	// maxAnswers is how many questions are answered at once, and maxAnswersOfUser how many of them are of one user.
	maxAnswers       = 32
	maxAnswersOfUser = 8
	// defaultAnswerTime is how long one answer may take.
	defaultAnswerTime = time.Hour
	// A client that does not answer for keepaliveTime and keepaliveTimeout is gone.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 20 * time.Second
	maxRequestBytes  = 64 << 10
)

// Options are what Run needs.
type Options struct {
	// Node is the Kubernetes node, and Namespace that of the store's objects.
	Node, Namespace string
	// IP and Port are the address to listen at. PeerPort is that of other stores: peer.DefaultPort if it is 0.
	IP             string
	Port, PeerPort int
	// TLSDir has tls.crt and tls.key, whose certificate is for names.MetadataHost, too, and ca.crt.
	TLSDir string
	Local  *Local
	// AnswerTime is how long one answer may take, also to a client that reads nothing: an hour if it is 0.
	AnswerTime time.Duration
	// Client knows the kinds of longhorn.io.
	Client     client.Client
	Kubernetes kubernetes.Interface
	Snapshots  snapshotclient.Interface
	Logger     *slog.Logger
}

// server implements api.SnapshotMetadataServer.
type server struct {
	api.UnimplementedSnapshotMetadataServer

	o       Options
	answers chan struct{} // has room for maxAnswers

	mu     sync.Mutex
	ofUser map[string]int // how many answers each user is being given
}

// Run serves until ctx ends, and then returns nil.
func Run(ctx context.Context, o Options) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(o.IP, strconv.Itoa(o.Port)))
	if err != nil {
		return fmt.Errorf("serve metadata of snapshots: %w", err)
	}
	return serve(ctx, o, listener)
}

// serve serves on a listener, and closes it.
func serve(ctx context.Context, o Options, listener net.Listener) error {
	if o.PeerPort == 0 {
		o.PeerPort = peer.DefaultPort
	}
	if o.AnswerTime == 0 {
		o.AnswerTime = defaultAnswerTime
	}
	rpc := grpc.NewServer(
		grpc.Creds(grpccredentials.NewTLS(peer.PublicTLS(o.TLSDir, "h2"))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.MaxConcurrentStreams(maxAnswers),
		grpc.MaxRecvMsgSize(maxRequestBytes),
	)
	api.RegisterSnapshotMetadataServer(rpc, &server{
		o: o, answers: make(chan struct{}, maxAnswers), ofUser: map[string]int{},
	})
	stop := context.AfterFunc(ctx, rpc.Stop)
	defer stop()
	if err := rpc.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve metadata of snapshots: %w", err)
	}
	return nil
}

// GetMetadataAllocated implements api.SnapshotMetadataServer, as does GetMetadataDelta.
func (s *server) GetMetadataAllocated(
	r *api.GetMetadataAllocatedRequest, stream grpc.ServerStreamingServer[api.GetMetadataAllocatedResponse],
) error {
	asked := question{token: r.GetSecurityToken(), namespace: r.GetNamespace(), name: r.GetSnapshotName()}
	q := query{start: r.GetStartingOffset(), most: r.GetMaxResults()}
	return s.serveQuestion(stream.Context(), asked, q, func(bytes int64, ranges []*csi.BlockMetadata) error {
		return stream.Send(&api.GetMetadataAllocatedResponse{
			BlockMetadataType: api.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: bytes,
			BlockMetadata: convertRanges(ranges),
		})
	})
}

// GetMetadataDelta implements api.SnapshotMetadataServer.
func (s *server) GetMetadataDelta(
	r *api.GetMetadataDeltaRequest, stream grpc.ServerStreamingServer[api.GetMetadataDeltaResponse],
) error {
	asked := question{token: r.GetSecurityToken(), namespace: r.GetNamespace(), name: r.GetTargetSnapshotName()}
	q := query{base: r.GetBaseSnapshotId(), start: r.GetStartingOffset(), most: r.GetMaxResults()}
	if q.base == "" {
		return describeError(errclass.Errorf(errclass.Invalid, "base_snapshot_id is empty: name the earlier snapshot"))
	}
	return s.serveQuestion(stream.Context(), asked, q, func(bytes int64, ranges []*csi.BlockMetadata) error {
		return stream.Send(&api.GetMetadataDeltaResponse{
			BlockMetadataType: api.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: bytes,
			BlockMetadata: convertRanges(ranges),
		})
	})
}

func convertRanges(ranges []*csi.BlockMetadata) []*api.BlockMetadata {
	out := make([]*api.BlockMetadata, len(ranges))
	for i, r := range ranges {
		out[i] = &api.BlockMetadata{ByteOffset: r.GetByteOffset(), SizeBytes: r.GetSizeBytes()}
	}
	return out
}

// serveQuestion answers a question about a VolumeSnapshot if whoever asks may get that. It returns when its time is
// over, whatever the answer does: a client that reads nothing holds up a message, and only the end of the call ends
// that.
func (s *server) serveQuestion(ctx context.Context, asked question, q query, send sender) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.AnswerTime)
	defer cancel()
	select {
	case s.answers <- struct{}{}:
		defer func() { <-s.answers }()
	default:
		return describeError(errclass.Errorf(errclass.Transient, "%d questions are being answered: ask again later",
			maxAnswers))
	}
	user, err := s.authorize(ctx, asked)
	if err == nil {
		err = s.beginAnswer(user)
	}
	if err == nil {
		defer s.endAnswer(user)
		q.target, err = s.findHandle(ctx, asked)
	}
	if err == nil {
		err = s.answerInTime(ctx, q, send)
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		s.o.Logger.Info("a question about a snapshot has no answer", "snapshot", asked.namespace+"/"+asked.name,
			"base", q.base, "user", user, "error", err)
	}
	return describeError(err)
}

// beginAnswer returns an error of class Transient if a user is being given as many answers as one may get at once.
// Otherwise endAnswer must follow.
func (s *server) beginAnswer(user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofUser[user] >= maxAnswersOfUser {
		return errclass.Errorf(errclass.Transient, "%d questions of %s are being answered: end some of them, or ask again "+
			"later", maxAnswersOfUser, user)
	}
	s.ofUser[user]++
	return nil
}

func (s *server) endAnswer(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofUser[user]--; s.ofUser[user] == 0 {
		delete(s.ofUser, user)
	}
}

// answerInTime returns when the answer has ended or ctx has. After that nothing more is sent.
func (s *server) answerInTime(ctx context.Context, q query, send sender) error {
	answered := make(chan error, 1)
	go func() {
		answered <- s.answer(ctx, q, func(bytes int64, ranges []*csi.BlockMetadata) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return send(bytes, ranges)
		})
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return errclass.Errorf(errclass.Transient, "the answer has taken %s: ask for the rest of it with starting_offset, "+
			"and read it without pauses: %w", s.o.AnswerTime, ctx.Err())
	}
}

// answer answers here, or has the store answer whose node has reported the disk.
func (s *server) answer(ctx context.Context, q query, send sender) error {
	uuid, _, _ := names.ParseSnapshotHandle(q.target)
	if _, err := s.o.Local.Disks.Find(uuid); err == nil {
		return s.o.Local.answer(ctx, q, send)
	}
	ip, err := s.findStore(ctx, uuid)
	if err != nil {
		return err
	}
	connection, err := peer.Dial(ip, s.o.PeerPort, s.o.TLSDir)
	if err != nil {
		return err
	}
	return errors.Join(askStore(ctx, connection, q, send), connection.Close())
}

// askStore passes on what another store answers.
func askStore(ctx context.Context, connection grpc.ClientConnInterface, q query, send sender) error {
	asked := csi.NewSnapshotMetadataClient(connection)
	if q.base == "" {
		stream, err := asked.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{
			SnapshotId: q.target, StartingOffset: q.start, MaxResults: q.most,
		})
		return passOn(stream, err, send)
	}
	stream, err := asked.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
		BaseSnapshotId: q.base, TargetSnapshotId: q.target, StartingOffset: q.start, MaxResults: q.most,
	})
	return passOn(stream, err, send)
}

// message is what answers of both methods have in common.
type message interface {
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

func passOn[M message](stream interface{ Recv() (M, error) }, err error, send sender) error {
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := send(m.GetVolumeCapacityBytes(), m.GetBlockMetadata()); err != nil {
			return err
		}
	}
}

// findStore returns the address of the store whose node has reported a disk.
func (s *server) findStore(ctx context.Context, uuid disk.UID) (string, error) {
	nodes := &longhornv1.NodeList{}
	if err := s.o.Client.List(ctx, nodes, client.InNamespace(s.o.Namespace)); err != nil {
		return "", errclass.Errorf(errclass.Transient, "list the Nodes, to find disk %s: %w", uuid, err)
	}
	i := slices.IndexFunc(nodes.Items, func(n longhornv1.Node) bool {
		for _, d := range n.Status.DiskStatus {
			if d != nil && d.DiskUUID == string(uuid) {
				return n.Name != s.o.Node
			}
		}
		return false
	})
	if i < 0 {
		return "", errclass.Errorf(errclass.Transient, "disk %s is not open: look at status.diskStatus of the Nodes", uuid)
	}
	manager := &longhornv1.InstanceManager{}
	err := s.o.Client.Get(ctx, client.ObjectKey{Namespace: s.o.Namespace, Name: nodes.Items[i].Name}, manager)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", errclass.Errorf(errclass.Transient, "get InstanceManager %s: %w", nodes.Items[i].Name, err)
	}
	if manager.Status.IP == "" {
		return "", errclass.Errorf(errclass.Transient, "the store of node %s has not reported its address",
			nodes.Items[i].Name)
	}
	return manager.Status.IP, nil
}
