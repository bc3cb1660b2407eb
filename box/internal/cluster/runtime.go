package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime queries one node's containerd through the interface that kubelet uses, so that both see the same images.
type runtime struct{ conn *grpc.ClientConn }

// withRuntime calls f with the containerd of node i. It reaches containerd from the host through the root of the node's init.
func (s *State) withRuntime(i int, f func(runtime) error) (err error) {
	socket := fmt.Sprintf("unix:///proc/%d/root/run/containerd/containerd.sock", s.Nodes[i-1].Init.PID)
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach containerd of node %d: %w", i, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return f(runtime{conn})
}

func (r runtime) checkVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := cri.NewRuntimeServiceClient(r.conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// imageID returns the ID (the digest of the config) of the image that ref names on the node, or "".
func (r runtime) imageID(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := cri.NewImageServiceClient(r.conn).ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		return "", fmt.Errorf("look up the image %s: %w", ref, err)
	}
	return resp.GetImage().GetId(), nil
}

// pruneImages removes the images that have lost every name to a newer image. Running containers keep their files.
func (r runtime) pruneImages(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	images := cri.NewImageServiceClient(r.conn)
	list, err := images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, img := range list.GetImages() {
		if len(img.GetRepoTags()) > 0 {
			continue
		}
		if _, err := images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: img.GetId()}}); err != nil {
			return fmt.Errorf("remove the replaced image %s: %w", img.GetId(), err)
		}
	}
	return nil
}
