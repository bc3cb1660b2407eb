package csi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// ioctlResizeExt4 is EXT4_IOC_RESIZE_FS of the kernel's include/uapi/linux/ext4.h. Its argument is a number of blocks.
const ioctlResizeExt4 = 0x40086610

// ControllerExpandVolume grows a volume of this node: its head, and if it is attached the device and the file system,
// too. So kubelet has nothing to do. The file system of a volume that is not attached grows when it is staged.
func (c *controllerServer) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, errclass.Errorf(errclass.Invalid, "volume_id or capacity_range is empty: name the volume and its size")
	}
	bytes, err := c.expandVolume(ctx, r.GetVolumeId(), r.GetCapacityRange())
	if err != nil {
		return nil, fmt.Errorf("grow the volume %s: %w", r.GetVolumeId(), err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: bytes}, nil
}

// expandVolume returns how many bytes the volume has afterwards. A volume that has more stays as it is. Each step is
// repeated if the call is.
func (d *Driver) expandVolume(ctx context.Context, handle string, size *csi.CapacityRange) (int64, error) {
	end, err := d.begin(handle)
	if err != nil {
		return 0, err
	}
	defer end()
	on, err := d.findVolumeDisk(ctx, handle)
	if err != nil {
		return 0, err
	}
	head, err := findObject(ctx, on, names.Head(handle))
	if err != nil {
		return 0, err
	}
	bytes := head.Bytes
	if size.GetRequiredBytes() > bytes {
		if bytes, err = chooseSize(size); err != nil {
			return 0, err
		}
		if err := on.Grow(ctx, head.Name, bytes); err != nil {
			return 0, err
		}
	} else if limit := size.GetLimitBytes(); limit > 0 && limit < bytes {
		return 0, errclass.Errorf(errSize, "it has %d bytes, and at most %d are asked for: it cannot shrink", bytes, limit)
	}
	if err := d.growDevice(ctx, handle); err != nil {
		return 0, err
	}
	return bytes, d.writeSize(ctx, handle, bytes)
}

// growDevice gives the device of a volume, and the file system that is mounted from it, the size of the head. If it has
// none, there is nothing to do.
func (d *Driver) growDevice(ctx context.Context, handle string) error {
	device, err := d.findDevice(ctx, handle)
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	if err == nil {
		err = d.loops.Resize(device)
	}
	if err != nil {
		return err
	}
	mounted, err := findDeviceMount(device.Path)
	if err != nil || mounted == "" {
		return err
	}
	return growFileSystem(mounted, device.Path)
}

// growMounted grows the file system that was just mounted, if it is smaller than its device, before anybody uses it.
// The kernel does not grow a file system that has errors, so e2fsck checks it. If the kernel still refuses, resize2fs
// grows it while it is not mounted. If nothing helps, the volume is used as it is: its data comes first.
func (n *nodeServer) growMounted(ctx context.Context, r *csi.NodeStageVolumeRequest, device string) error {
	target := r.GetStagingTargetPath()
	err := growFileSystem(target, device)
	for _, mend := range []func(context.Context, string) error{n.checkFileSystem, n.resizeUnmounted} {
		if err == nil {
			return nil
		}
		n.log.Info("check a file system that does not grow", "volume", r.GetVolumeId(), "error", err)
		if err := unmountAll(target); err != nil {
			return err
		}
		// A tool that is killed when the call ends could leave half of what it does.
		mendErr := mend(context.WithoutCancel(ctx), device)
		if err := mountVolume(r, device); err != nil {
			return err
		}
		if err = mendErr; err == nil {
			err = growFileSystem(target, device)
		}
	}
	if err != nil {
		n.log.Error("a volume has a file system that is smaller than the volume", "volume", r.GetVolumeId(), "error", err)
	}
	return nil
}

func (d *Driver) checkFileSystem(ctx context.Context, device string) error {
	return d.runTool(ctx, 1, device, "e2fsck", "-f", "-p") // 1: it has mended something
}

// resizeUnmounted checks the file system first: resize2fs demands that after each mount.
func (d *Driver) resizeUnmounted(ctx context.Context, device string) error {
	if err := d.checkFileSystem(ctx, device); err != nil {
		return err
	}
	return d.runTool(ctx, 0, device, "resize2fs")
}

// growFileSystem gives a mounted ext4 the size of its device. The kernel does that, as resize2fs asks it to.
func growFileSystem(mounted, device string) error {
	if err := resizeExt4(mounted, device); err != nil {
		return fmt.Errorf("grow the file system at %s: %w", mounted, err)
	}
	return nil
}

func resizeExt4(mounted, device string) (err error) {
	made, block, bytes, err := measureExt4(device)
	if err != nil || block == 0 || made >= uint64(bytes)/block {
		return err
	}
	blocks := uint64(bytes) / block
	f, err := os.Open(mounted)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Flags&unix.ST_RDONLY != 0 {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlResizeExt4, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("from %d to %d blocks of %d bytes, while it is mounted: %w: end the pods that use the volume, "+
			"and it grows when the next one starts", made, blocks, block, errno)
	}
	return nil
}

// measureExt4 returns how many blocks the ext4 on a device was made for, the size of a block in bytes, and that of the
// device. A block has 0 bytes if it is not an ext4. See the kernel's Documentation/filesystems/ext4/super.rst.
func measureExt4(device string) (blocks, block uint64, bytes int64, err error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if bytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return 0, 0, 0, err
	}
	const magic, has64Bits = 0xEF53, 0x80
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		return 0, 0, bytes, err
	}
	shift := binary.LittleEndian.Uint32(super[0x18:])
	if binary.LittleEndian.Uint16(super[0x38:]) != magic || shift > 6 {
		return 0, 0, bytes, nil
	}
	blocks = uint64(binary.LittleEndian.Uint32(super[0x4:]))
	if binary.LittleEndian.Uint32(super[0x60:])&has64Bits != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(super[0x150:])) << 32
	}
	return blocks, 1024 << shift, bytes, nil
}

// writeSize writes the size of a volume into Volume and Replica.
func (d *Driver) writeSize(ctx context.Context, handle string, bytes int64) error {
	replica, volume := &longhornv1.Replica{}, &longhornv1.Volume{}
	for _, o := range []client.Object{replica, volume} {
		err := d.options.Client.Get(ctx, d.objectKey(handle), o)
		if apierrors.IsNotFound(err) {
			return errclass.Errorf(errclass.NotFound, "%T %s is gone", o, handle)
		}
		if err != nil {
			return errclass.Errorf(errclass.Transient, "get %T %s: %w", o, handle, err)
		}
	}
	replicaBefore, volumeBefore := replica.DeepCopy(), volume.DeepCopy()
	replica.Spec.VolumeSize, volume.Spec.Size = bytes, bytes
	var err error
	if replicaBefore.Spec.VolumeSize != bytes {
		err = d.options.Client.Patch(ctx, replica, client.MergeFrom(replicaBefore))
	}
	if err == nil && volumeBefore.Spec.Size != bytes {
		err = d.options.Client.Patch(ctx, volume, client.MergeFrom(volumeBefore))
	}
	if err != nil {
		return errclass.Errorf(errclass.Transient, "write the size of Volume and Replica %s: %w", handle, err)
	}
	return nil
}
