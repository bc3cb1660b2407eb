package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/imagetar"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/service"
)

// importLimit bounds the import of one image file into one node.
const importLimit = 5 * time.Minute

// Load imports image files (OCI layout or `docker save`, as tar) into every node. It skips a node that already has
// the images, by the digests of their configs. The box keeps a copy for nodes that are added later.
func Load(ctx context.Context, dir layout.Box, files []string, p *Progress) error {
	unlock, err := lockBox(ctx, dir, false)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := loadState(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		stored, err := storeImage(dir, file)
		if err != nil {
			return err
		}
		for i := range st.Nodes {
			if err := st.importImage(ctx, dir, i+1, stored, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// ensureImages imports every image that the box keeps into node i, including the pause image.
func (s *State) ensureImages(ctx context.Context, dir layout.Box, i int, p *Progress) error {
	if err := storePause(dir); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir.Images(), "*.tar"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := s.importImage(ctx, dir, i, f, p); err != nil {
			return err
		}
	}
	return nil
}

func storePause(dir layout.Box) error {
	binary, err := os.ReadFile(dir.Program("pause"))
	if err != nil {
		return fmt.Errorf("build the pause image: %w", err)
	}
	image, err := imagetar.Build(service.PauseImage, []string{"/pause"}, []imagetar.File{{Path: "pause", Data: binary, Mode: 0o755}})
	if err != nil {
		return err
	}
	path := filepath.Join(dir.Images(), "pause.tar")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, image) {
		return nil
	}
	return atomicfile.Write(path, image, 0o644)
}

// storeImage copies an image file into the box under a name derived from its content, and removes the copies of
// images all of whose names the new file takes over. It returns the path of the copy.
func storeImage(dir layout.Box, file string) (string, error) {
	images, err := inspectImages(file)
	if err != nil {
		return "", err
	}
	if len(images) == 0 {
		return "", fmt.Errorf("load %s: it names no image", file)
	}
	ids := make([]string, 0, len(images))
	for _, img := range images {
		ids = append(ids, strings.TrimPrefix(img.ID, "sha256:")[:24])
	}
	stored := filepath.Join(dir.Images(), strings.Join(ids, "-")+".tar")
	if same, err := sameImages(stored, images); err != nil || same {
		return stored, err
	}
	if err := copyImage(file, stored); err != nil {
		return "", fmt.Errorf("load %s: %w", file, err)
	}
	return stored, dropReplaced(dir, stored, imageRefs(images))
}

// sameImages says whether a stored file contains images with the same names.
func sameImages(stored string, images []imagetar.Image) (bool, error) {
	have, err := inspectImages(stored)
	if isMissing(err) {
		return false, nil
	}
	return slices.Equal(imageRefs(have), imageRefs(images)), err
}

func dropReplaced(dir layout.Box, keep string, taken []string) error {
	files, err := filepath.Glob(filepath.Join(dir.Images(), "*.tar"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if f == keep {
			continue
		}
		images, err := inspectImages(f)
		if err != nil {
			return err
		}
		free := slices.ContainsFunc(imageRefs(images), func(ref string) bool { return !slices.Contains(taken, ref) })
		if !free {
			if err := os.Remove(f); err != nil {
				return fmt.Errorf("drop the replaced image %s: %w", f, err)
			}
		}
	}
	return nil
}

func copyImage(from, to string) (err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close() //nolint:errcheck // read only
	dst, err := os.CreateTemp(filepath.Dir(to), ".load.")
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Sync(), dst.Close()); err == nil {
		err = os.Rename(dst.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(dst.Name()))
	}
	return nil
}

func inspectImages(file string) (images []imagetar.Image, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the image file: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	if images, err = imagetar.Inspect(f); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return images, nil
}

func imageRefs(images []imagetar.Image) []string {
	var out []string
	for _, img := range images {
		out = append(out, img.Refs...)
	}
	slices.Sort(out)
	return out
}

// importImage imports the images in file into node i, unless it has them.
func (s *State) importImage(ctx context.Context, dir layout.Box, i int, file string, p *Progress) error {
	images, err := inspectImages(file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, importLimit)
	defer cancel()
	name := layout.NodeName(i)
	return s.withRuntime(i, func(r runtime) error {
		if r.hasImages(ctx, images) == nil {
			return nil
		}
		cmd := exec.CommandContext(ctx, "nsenter", append(enterArgs(s.Nodes[i-1].Init.PID),
			"ctr", "-n", "k8s.io", "images", "import", file)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("import %s into %s: %w: %s", file, name, err, out)
		}
		p.Say("%s: imported %s", name, strings.Join(imageRefs(images), ", "))
		err := awaitCheck(ctx, "kubelet's view of "+file, 30*time.Second, dir.Node(i).Log("containerd"), func(ctx context.Context) error {
			return r.hasImages(ctx, images)
		})
		return errors.Join(err, r.pruneImages(ctx))
	})
}

// hasImages returns an error unless the node has each of the images under each of its names.
func (r runtime) hasImages(ctx context.Context, images []imagetar.Image) error {
	for _, img := range images {
		for _, ref := range img.Refs {
			id, err := r.imageID(ctx, ref)
			if err != nil {
				return err
			}
			if id != img.ID {
				return fmt.Errorf("%s is %q, not %s", ref, id, img.ID)
			}
		}
	}
	return nil
}

// enterArgs returns the arguments with which nsenter(1) enters every namespace of a node.
func enterArgs(pid int) []string {
	return []string{"--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
}
