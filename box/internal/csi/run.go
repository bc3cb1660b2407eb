package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/varvebackup/varve/box/internal/layout"
)

// Socket is where the driver with snapshots serves, inside the node.
const Socket = pluginDir + DriverName + socketName

// Where kubelet looks for plugins. The paths are inside the node.
const (
	pluginDir       = "/var/lib/kubelet/plugins/"
	socketName      = "/csi.sock"
	registrationDir = "/var/lib/kubelet/plugins_registry/"
)

// drivers are the box's drivers. The second one has such volumes too, but lacks all that the snapshot API needs, as
// many drivers do: no controller service, no sources, no VolumeSnapshotClass. Its volumes are in a folder of their own,
// because the snapshot controller hands any volume to the driver that the VolumeSnapshotClass names.
var drivers = []driver{{name: DriverName, snapshots: true}, {name: PlainDriverName, folder: "nosnap"}}

type driver struct {
	name      string
	folder    string // of its volumes, see store
	snapshots bool
}

func (d driver) socket() string { return pluginDir + d.name + socketName }

// Run serves kubelet and provisions volumes for the named node until ctx ends. It must run in the node's namespaces.
func Run(ctx context.Context, dir layout.Box, node string, log *slog.Logger) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read the box's kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client for the box: %w", err)
	}
	snapshots, err := snapshotv1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client for the box: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, d := range drivers {
		p := &provisioner{driver: d, node: node, controller: &controllerServer{store: newStore(dir, node, d)}, client: client, snapshots: snapshots}
		serveDriver(ctx, g, p, log)
		g.Go(func() error { return runProvisioner(ctx, client, p) })
	}
	return g.Wait()
}

// serveDriver serves kubelet, and csi-snapshotter if the driver has snapshots.
func serveDriver(ctx context.Context, g *errgroup.Group, p *provisioner, log *slog.Logger) {
	server := grpc.NewServer(grpc.UnaryInterceptor(logFailures(log)))
	csi.RegisterIdentityServer(server, identity{driver: p.driver})
	csi.RegisterNodeServer(server, &nodeServer{name: p.node, store: p.controller.store})
	if p.driver.snapshots {
		csi.RegisterControllerServer(server, p.controller)
	}
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, registrationServer{driver: p.driver, log: log})
	g.Go(func() error { return serveSocket(ctx, server, p.driver.socket()) })
	// kubelet calls the driver as soon as it sees the registration, and retries if the driver is not there yet.
	g.Go(func() error { return serveSocket(ctx, registrar, registrationDir+p.driver.name+"-reg.sock") })
}

// serveSocket serves on a Unix socket. It replaces one that a killed process left.
func serveSocket(ctx context.Context, s *grpc.Server, socket string) error {
	if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o750), skipMissing(os.Remove(socket))); err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
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

func logFailures(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if err != nil {
			log.Error("call failed", "method", info.FullMethod, "error", err)
		}
		return resp, err
	}
}

// identity answers queries about the driver's identity (CSI specification, "Identity Service RPC").
type identity struct {
	csi.UnimplementedIdentityServer
	driver driver
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.driver.name, VendorVersion: "1"}, nil
}

func (i identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{}
	if i.driver.snapshots {
		resp.Capabilities = []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}}}
	}
	return resp, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// registrationServer tells kubelet's plugin watcher where the driver is.
type registrationServer struct {
	registration.UnimplementedRegistrationServer
	driver driver
	log    *slog.Logger
}

func (r registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.driver.name, Endpoint: r.driver.socket(), SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrationServer) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.log.Error("kubelet refused the driver", "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
