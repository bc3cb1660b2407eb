package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/box/internal/csi"
	"github.com/varvebackup/varve/box/internal/layout"
)

// storageServices lists the services that volumes and snapshots need on node i.
func storageServices(i int) []string {
	if i == 1 {
		return append([]string{"csi"}, snapshotPrograms...)
	}
	return []string{"csi"}
}

// installStorage creates the objects of volumes and snapshots in the cluster, and the API of the latter.
func (s *State) installStorage(ctx context.Context, dir layout.Box, c *kubernetes.Clientset) error {
	files, err := filepath.Glob(filepath.Join(dir.CRDs(), "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		err := s.awaitOnNode(ctx, dir, 1, "the API of "+filepath.Base(file), time.Minute, dir.Node(1).Log("kube-apiserver"),
			func(ctx context.Context) error { return applyCRD(ctx, c, file) })
		if err != nil {
			return err
		}
	}
	cfg, err := adminConfig(dir)
	if err != nil {
		return err
	}
	snapshots, err := snapshotv1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a client for the box: %w", err)
	}
	return csi.Install(ctx, csi.Clients{Kubernetes: c, Snapshots: snapshots})
}

// applyCRD applies a CustomResourceDefinition, and returns an error unless the API server serves it already.
func applyCRD(ctx context.Context, c *kubernetes.Clientset, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("apply a CRD: %w", err)
	}
	if data, err = yaml.YAMLToJSON(data); err != nil {
		return fmt.Errorf("apply %s: %w", file, err)
	}
	var crd definition
	if err := json.Unmarshal(data, &crd); err != nil {
		return fmt.Errorf("apply %s: %w", file, err)
	}
	name := crd.Metadata.Name
	answer, err := c.RESTClient().Patch(types.ApplyPatchType).
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name).
		Param("fieldManager", "varve-box").Param("force", "true").Body(data).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("apply the CRD %s: %w", name, err)
	}
	if err := json.Unmarshal(answer, &crd); err != nil {
		return fmt.Errorf("apply the CRD %s: %w", name, err)
	}
	if !slices.Contains(crd.Status.Conditions, condition{Type: "Established", Status: "True"}) {
		return fmt.Errorf("the CRD %s is not established yet", name)
	}
	return nil
}

// definition is the part of a CustomResourceDefinition that the box reads.
type definition struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}
