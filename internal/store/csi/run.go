// Package csi is the CSI driver store.varvebackup.io, as it runs on every node, and its provisioner. A volume is a head
// on a disk of the node, and a loop device on it.
//
// What a volume is lies in the API: Volume and Replica exist before the head, so a call that is repeated finds the same
// disk. What is attached is the kernel's knowledge: devices outlive the process, and the leases of their heads are
// opened again before anybody can delete those. Calls are idempotent. Two calls for one volume never overlap: the
// second one fails with Aborted, and kubelet repeats it. Kubelet's calls need no API server.
package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/client-go/kubernetes"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/privatesocket"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/version"
)

// Options are what the driver needs.
type Options struct {
	// Node is the Kubernetes node, and Namespace that of the store's objects.
	Node, Namespace string
	// Disks are the node's. LeaseAttached comes before a disk is in the set.
	Disks *diskset.Set
	// Client knows the kinds of longhorn.io and those of Kubernetes.
	Client     client.Client
	Kubernetes kubernetes.Interface
	// Snapshots knows VolumeSnapshots. If it is nil, the driver serves none.
	Snapshots snapshotclient.Interface
	// KubeletDir is kubelet's directory, /var/lib/kubelet by default. It has the same path for this process, and mounts
	// below it must propagate to the node.
	KubeletDir string
	// HostRoot is where this process sees the node's root directory, whose mkfs.ext4 is used if the process has none.
	// It may be empty. The node's /dev must be this process's: new devices appear only there.
	HostRoot string
	// Failed is told of each call that failed. It may be nil.
	Failed func()
	Clock  clock.WithTicker // clock.RealClock by default
	Logger *slog.Logger
}

// Socket returns where the driver serves.
func (o *Options) Socket() string {
	return filepath.Join(cmp.Or(o.KubeletDir, "/var/lib/kubelet"), "plugins", names.Driver, "csi.sock")
}

// registrationSocket returns where kubelet looks for the driver.
func (o *Options) registrationSocket() string {
	return filepath.Join(cmp.Or(o.KubeletDir, "/var/lib/kubelet"), "plugins_registry", names.Driver+"-reg.sock")
}

// Run serves kubelet, and provisions volumes for the node's claims, until ctx ends, and then returns nil. Volumes stay
// attached.
func (d *Driver) Run(ctx context.Context) error {
	g, running := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		d.serveDriver, d.serveRegistration, d.runStatus, d.runClaims, d.runSnapshotter, d.runSweep,
	} {
		g.Go(func() error { return run(running) })
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // what ended because ctx did
	}
	return err
}

func (d *Driver) serveDriver(ctx context.Context) error {
	server := grpc.NewServer(grpc.UnaryInterceptor(d.convertErrors))
	csi.RegisterIdentityServer(server, identity{})
	csi.RegisterControllerServer(server, &controllerServer{Driver: d})
	csi.RegisterNodeServer(server, &nodeServer{Driver: d})
	return serveSocket(ctx, server, d.options.Socket())
}

// serveRegistration tells kubelet where the driver is. Kubelet calls the driver as soon as it sees that, and tries
// again if the driver is not there yet.
func (d *Driver) serveRegistration(ctx context.Context) error {
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, registrationServer{
		socket: d.options.Socket(), log: d.log, note: d.noteRegistration,
	})
	return serveSocket(ctx, server, d.options.registrationSocket())
}

// serveSocket serves on a Unix socket, and replaces one that a killed process left.
func serveSocket(ctx context.Context, s *grpc.Server, socket string) error {
	err := os.MkdirAll(filepath.Dir(socket), 0o750)
	if err == nil {
		err = skipMissing(os.Remove(socket))
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	listener, err := privatesocket.Listen(ctx, socket)
	if err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	if err := s.Serve(listener); err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	return ctx.Err()
}

func skipMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// identity says what the driver is (CSI specification, "Identity Service RPC").
type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: names.Driver, VendorVersion: version.Version}, nil
}

func (identity) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
		Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
		},
	})
	return resp, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// registrationServer tells kubelet's plugin watcher where the driver is.
type registrationServer struct {
	registration.UnimplementedRegistrationServer
	socket string
	log    *slog.Logger
	note   func(error)
}

func (r registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: names.Driver, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrationServer) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.note(nil)
	} else {
		r.log.Error("kubelet refused the driver", "error", s.GetError())
		r.note(errclass.Errorf(errclass.Transient, "kubelet refused the CSI driver %s: %s", names.Driver, s.GetError()))
	}
	return &registration.RegistrationStatusResponse{}, nil
}
