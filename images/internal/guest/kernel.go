package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/varvebackup/varve/images/internal/command"
)

// kernel is a Debian kernel in a directory of unpacked packages.
type kernel struct {
	image   string // The boot image.
	modules string // usr/lib/modules/<version>.
}

// module is one kernel module, uncompressed because busybox's insmod does not support xz.
type module struct {
	name    string // With underscores, as the kernel spells it.
	content []byte
}

// findKernel returns the only kernel below dir.
func findKernel(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return kernel{}, err
	}
	if len(images) != 1 {
		return kernel{}, fmt.Errorf("find kernel: %d boot images in %s, want one", len(images), filepath.Join(dir, "boot"))
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return kernel{image: images[0], modules: filepath.Join(dir, "usr/lib/modules", version)}, nil
}

// unpackImage returns the kernel in the boot image. QEMU can boot it directly (PVH), and an emulated processor needs
// seconds to unpack it.
//
// Source: Linux, Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header" and "Loading The Rest of The Kernel".
func (k kernel) unpackImage() ([]byte, error) {
	image, err := os.ReadFile(k.image)
	if err != nil {
		return nil, err
	}
	const setupSectors, payloadOffset, payloadLength, headerEnd, sector = 0x1f1, 0x248, 0x24c, 0x268, 512
	if len(image) < headerEnd {
		return nil, fmt.Errorf("unpack %s: %d bytes are no boot image", k.image, len(image))
	}
	begin := (int64(image[setupSectors])+1)*sector + int64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	end := begin + int64(binary.LittleEndian.Uint32(image[payloadLength:]))
	const tail = 4 // The unpacked size follows the compressed data.
	if end > int64(len(image)) || end-begin < tail {
		return nil, fmt.Errorf("unpack %s: its payload [%d,%d) is not in its %d bytes", k.image, begin, end, len(image))
	}
	payload, size := image[begin:end-tail], binary.LittleEndian.Uint32(image[end-tail:])
	reader, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	unpacked, err := reader.DecodeAll(payload, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack %s, which is expected to be compressed with zstd: %w", k.image, err)
	}
	if uint64(len(unpacked)) != uint64(size) || !bytes.HasPrefix(unpacked, []byte(elf.ELFMAG)) {
		return nil, fmt.Errorf("unpack %s: got %d bytes, want an ELF file of %d", k.image, len(unpacked), size)
	}
	return unpacked, nil
}

// loadModules returns the wanted modules and all their dependencies, each module after its own dependencies.
func (k kernel) loadModules(ctx context.Context, wanted []string) ([]module, error) {
	paths, err := k.indexModules()
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	var ordered []module
	state := map[string]bool{} // The visited modules.
	var visit func(name string) error
	visit = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if state[name] {
			return nil
		}
		state[name] = true
		path, ok := paths[name]
		if !ok {
			if isBuiltin(string(builtin), name) {
				return nil
			}
			return fmt.Errorf("the kernel has no module %s", name)
		}
		content, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		needs, err := moduleDependencies(content)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := visit(n); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		ordered = append(ordered, module{name: name, content: content})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

// indexModules maps the names of all modules to their files.
func (k kernel) indexModules() (map[string]string, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(filepath.Join(k.modules, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			paths[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list modules: %w", err)
	}
	return paths, nil
}

func isBuiltin(list, name string) bool {
	for _, line := range strings.Fields(list) {
		if strings.ReplaceAll(strings.TrimSuffix(filepath.Base(line), ".ko"), "-", "_") == name {
			return true
		}
	}
	return false
}

// readModule returns a module's content, uncompressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if filepath.Ext(path) == ".xz" {
		return command.Run(ctx, nil, "xz", "--decompress", "--stdout", path)
	}
	return os.ReadFile(path)
}

// moduleDependencies reads the names of the modules that a module needs from its section .modinfo: "depends=a,b".
func moduleDependencies(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, field := range bytes.Split(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
