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
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/varvebackup/varve/box/internal/layout"
)

// Where kubelet looks for plugins. The paths are inside the node.
const (
	driverSocket       = "/var/lib/kubelet/plugins/" + DriverName + "/csi.sock"
	registrationSocket = "/var/lib/kubelet/plugins_registry/" + DriverName + "-reg.sock"
)

// Run serves kubelet and provisions volumes for the named node until ctx ends. It must run in the node's namespaces.
func Run(ctx context.Context, dir layout.Box, node string, log *slog.Logger) error {
	volumes := store{dir: filepath.Join(dir.Volumes(), node)}
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read the box's kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client for the box: %w", err)
	}
	driver := grpc.NewServer(grpc.UnaryInterceptor(logFailures(log)))
	csi.RegisterIdentityServer(driver, identity{})
	csi.RegisterNodeServer(driver, &nodeServer{name: node, store: volumes})
	registrar := grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, registrationServer{log: log})

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveSocket(ctx, driver, driverSocket) })
	// kubelet calls the driver as soon as it sees the registration, and retries if the driver is not there yet.
	g.Go(func() error { return serveSocket(ctx, registrar, registrationSocket) })
	g.Go(func() error { return runProvisioner(ctx, client, node, volumes) })
	return g.Wait()
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
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: "1"}, nil
}

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// registrationServer tells kubelet's plugin watcher where the driver is.
type registrationServer struct {
	registration.UnimplementedRegistrationServer
	log *slog.Logger
}

func (registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: DriverName, Endpoint: driverSocket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrationServer) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.log.Error("kubelet refused the driver", "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
