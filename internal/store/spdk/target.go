package spdk

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/varvebackup/varve/internal/errclass"
)

const mebibyte = 1 << 20

// store is what a target tells of a store of logical volumes.
type store struct {
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	TotalClusters int64  `json:"total_data_clusters"`
	FreeClusters  int64  `json:"free_clusters"`
	BlockBytes    int64  `json:"block_size"`
	ClusterBytes  int64  `json:"cluster_size"`
}

// readStore returns the store with a name.
func (c client) readStore(ctx context.Context, name string) (store, error) {
	var all []store
	if err := c.call(ctx, "bdev_lvol_get_lvstores", map[string]string{"lvs_name": name}, &all); err != nil {
		return store{}, err
	}
	if len(all) != 1 {
		return store{}, errclass.Errorf(errclass.Transient, "the target has %d stores named %s", len(all), name)
	}
	s := all[0]
	if s.ClusterBytes <= 0 || s.ClusterBytes%mebibyte != 0 || s.BlockBytes <= 0 {
		return store{}, errclass.Errorf(errclass.Invalid, "the clusters of the store %s have %d bytes: make it with "+
			"cluster_sz 1048576 or a multiple of that", name, s.ClusterBytes)
	}
	return s, nil
}

// volume is a logical volume of the target.
type volume struct {
	UUID    string   `json:"name"`    // its first name at the target
	Aliases []string `json:"aliases"` // store/volume
	Blocks  int64    `json:"num_blocks"`
	Driver  struct {
		Volume *struct {
			Store  string   `json:"lvol_store_uuid"`
			Parent string   `json:"base_snapshot"` // the name of the volume that it is a clone of, or empty
			Clones []string `json:"clones"`
		} `json:"lvol"`
	} `json:"driver_specific"`
}

// readVolumes returns the volumes of a store.
func (c client) readVolumes(ctx context.Context, s store) (map[string]volume, error) {
	var all []volume
	if err := c.call(ctx, "bdev_get_bdevs", nil, &all); err != nil {
		return nil, err
	}
	found := map[string]volume{}
	for _, v := range all {
		if v.Driver.Volume == nil || v.Driver.Volume.Store != s.UUID || len(v.Aliases) == 0 {
			continue
		}
		if name, ok := strings.CutPrefix(v.Aliases[0], s.Name+"/"); ok {
			found[name] = v
		}
	}
	return found, nil
}

// createVolume makes an empty volume that takes space when it is written.
func (c client) createVolume(ctx context.Context, s store, name string, bytes int64) error {
	return c.call(ctx, "bdev_lvol_create", map[string]any{
		"lvs_name": s.Name, "lvol_name": name, "size_in_mib": roundToClusters(s, bytes) / mebibyte, "thin_provision": true,
		"clear_method": "unmap",
	}, nil)
}

func (c client) cloneVolume(ctx context.Context, s store, from, name string) error {
	return c.call(ctx, "bdev_lvol_clone", map[string]any{"snapshot_name": s.Name + "/" + from, "clone_name": name}, nil)
}

func (c client) resizeVolume(ctx context.Context, s store, name string, bytes int64) error {
	return c.call(ctx, "bdev_lvol_resize", map[string]any{
		"name": s.Name + "/" + name, "size_in_mib": roundToClusters(s, bytes) / mebibyte,
	}, nil)
}

// snapshotVolume makes a snapshot, whose clone the volume is from then on. It has the attributes from its first moment,
// and they never change.
func (c client) snapshotVolume(
	ctx context.Context, s store, name, snapshot string, attributes map[string]string,
) error {
	params := map[string]any{"lvol_name": s.Name + "/" + name, "snapshot_name": snapshot}
	if len(attributes) > 0 {
		params["xattrs"] = attributes
	}
	return c.call(ctx, "bdev_lvol_snapshot", params, nil)
}

func (c client) freezeVolume(ctx context.Context, s store, name string) error {
	return c.call(ctx, "bdev_lvol_set_read_only", map[string]string{"name": s.Name + "/" + name}, nil)
}

// decoupleVolume copies into a volume what it shares with its parent, whose clone it ceases to be.
func (c client) decoupleVolume(ctx context.Context, s store, name string) error {
	return c.callWithin(ctx, copyTimeout, "bdev_lvol_decouple_parent", map[string]string{"name": s.Name + "/" + name}, nil)
}

// deleteVolume deletes a volume, and what it has goes to its clone, if it has one. It refuses one that has more.
func (c client) deleteVolume(ctx context.Context, s store, name string) error {
	return c.call(ctx, "bdev_lvol_delete", map[string]string{"name": s.Name + "/" + name}, nil)
}

// setAttribute sets the attribute of a volume that is not frozen.
func (c client) setAttribute(ctx context.Context, s store, name, value string) error {
	return c.call(ctx, "bdev_lvol_set_xattr", map[string]string{
		"name": s.Name + "/" + name, "xattr_name": attribute, "xattr_value": value,
	}, nil)
}

// readAttribute returns an attribute, or an empty string if the volume does not have it.
func (c client) readAttribute(ctx context.Context, s store, name, key string) (value string, err error) {
	err = c.call(ctx, "bdev_lvol_get_xattr", map[string]string{"name": s.Name + "/" + name, "xattr_name": key}, &value)
	if isErrno(err, syscall.ENOENT) {
		return "", nil
	}
	return value, err
}

// bitmap has a bit for each cluster of a volume.
type bitmap []byte

func (b bitmap) has(cluster int64) bool {
	return cluster/8 < int64(len(b)) && b[cluster/8]&(1<<(cluster%8)) != 0
}

// readAllocated returns the clusters that a volume has itself, apart from those of its parent.
func (c client) readAllocated(ctx context.Context, s store, name string) (bitmap, error) {
	var result struct {
		ClusterBytes int64  `json:"cluster_size"`
		Clusters     int64  `json:"num_clusters"`
		Bits         string `json:"fragmap"`
	}
	if err := c.call(ctx, "bdev_lvol_get_fragmap", map[string]string{"name": s.Name + "/" + name}, &result); err != nil {
		return nil, err
	}
	bits, err := base64.StdEncoding.DecodeString(result.Bits)
	if err != nil || int64(len(bits)) < (result.Clusters+7)/8 || result.ClusterBytes != s.ClusterBytes {
		return nil, fmt.Errorf("the map of %s has %d bytes for %d clusters of %d bytes: %w", name, len(bits), result.Clusters,
			result.ClusterBytes, errclass.Transient)
	}
	return bits, nil
}

// subsystem is what the target serves under a name.
type subsystem struct {
	NQN string `json:"nqn"`
}

// serveVolume makes a subsystem with one namespace, which only one host may use, and returns the number of the
// namespace. An error leaves nothing of it.
func (c client) serveVolume(ctx context.Context, nqn, host, uuid, address, port string) (number uint32, err error) {
	err = c.call(ctx, "nvmf_create_subsystem", map[string]any{
		"nqn": nqn, "allow_any_host": false, "serial_number": "varve", "max_namespaces": 1,
	}, nil)
	if err != nil && !errors.Is(err, errclass.Unknown) {
		return 0, err
	}
	if err == nil {
		err = c.call(ctx, "nvmf_subsystem_add_host", map[string]string{"nqn": nqn, "host": host}, nil)
	}
	if err == nil {
		err = c.call(ctx, "nvmf_subsystem_add_ns", map[string]any{
			"nqn": nqn, "namespace": map[string]string{"bdev_name": uuid},
		}, &number)
	}
	if err == nil {
		err = c.call(ctx, "nvmf_subsystem_add_listener", map[string]any{
			"nqn": nqn, "listen_address": map[string]string{
				"trtype": "TCP", "adrfam": "IPv4", "traddr": address, "trsvcid": port,
			},
		}, nil)
	}
	if err != nil {
		return 0, joinCleanup(err, c.endService(ctx, nqn))
	}
	return number, nil
}

// endService removes a subsystem, and cuts off who still uses it.
func (c client) endService(ctx context.Context, nqn string) error {
	return c.call(context.WithoutCancel(ctx), "nvmf_delete_subsystem", map[string]string{"nqn": nqn}, nil)
}

// prepareService makes the transport that subsystems need, if the target does not have it.
func (c client) prepareService(ctx context.Context) error {
	var all []struct {
		Type string `json:"trtype"`
	}
	if err := c.call(ctx, "nvmf_get_transports", nil, &all); err != nil {
		return err
	}
	for _, t := range all {
		if t.Type == "TCP" {
			return nil
		}
	}
	return c.call(ctx, "nvmf_create_transport", map[string]string{"trtype": "TCP"}, nil)
}

// readServices returns the names of all subsystems.
func (c client) readServices(ctx context.Context) ([]string, error) {
	var all []subsystem
	if err := c.call(ctx, "nvmf_get_subsystems", nil, &all); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range all {
		names = append(names, s.NQN)
	}
	slices.Sort(names)
	return names, nil
}

func roundToClusters(s store, bytes int64) int64 {
	return (bytes + s.ClusterBytes - 1) / s.ClusterBytes * s.ClusterBytes
}
