package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/box/internal/layout"
)

// Programs says where the programs that the box runs come from.
type Programs struct {
	Kube  string // the multi-call Kubernetes binary; beside it are CoreDNS, the snapshot programs and crd/, their CRDs
	Box   string // this program
	Pause string // the pause image's only file
}

// kubePrograms are the names that the Kubernetes binary answers to.
var kubePrograms = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
}

// snapshotPrograms are the services of CSI snapshots, which have binaries of their own.
var snapshotPrograms = []string{"snapshot-controller", "csi-snapshotter"}

// installInto copies the programs into the box, and says whether one that runs on nodes changed.
func (p Programs) installInto(dir layout.Box) (changed bool, err error) {
	if err := os.MkdirAll(dir.Bin(), 0o755); err != nil {
		return false, fmt.Errorf("install programs: %w", err)
	}
	programs := map[string]string{"kube": p.Kube, "box": p.Box, "pause": p.Pause}
	for _, name := range append([]string{"coredns"}, snapshotPrograms...) {
		programs[name] = filepath.Join(filepath.Dir(p.Kube), name)
	}
	for name, from := range programs {
		c, err := installFile(from, dir.Program(name))
		if err != nil {
			return false, fmt.Errorf("install %s from %s: %w", name, from, err)
		}
		changed = changed || c && name != "pause"
	}
	for _, name := range kubePrograms {
		link := dir.Program(name)
		if target, err := os.Readlink(link); err == nil && target == "kube" {
			continue
		}
		if err := errors.Join(skipMissing(os.Remove(link)), os.Symlink("kube", link)); err != nil {
			return false, fmt.Errorf("install %s: %w", name, err)
		}
	}
	return changed, p.installCRDs(dir)
}

// installCRDs copies the definitions of the VolumeSnapshot API into the box.
func (p Programs) installCRDs(dir layout.Box) error {
	files, err := filepath.Glob(filepath.Join(filepath.Dir(p.Kube), "crd", "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no CRDs are in %s/crd: run `make kube`", filepath.Dir(p.Kube))
	}
	if err := os.MkdirAll(dir.CRDs(), 0o755); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	for _, from := range files {
		if _, err := installFile(from, filepath.Join(dir.CRDs(), filepath.Base(from))); err != nil {
			return fmt.Errorf("install %s: %w", from, err)
		}
	}
	return nil
}

// installFile copies a file unless the copy has the same size and modification time, or the same content. It renames
// the copy into place, so a running program keeps its own file.
func installFile(from, to string) (changed bool, err error) {
	src, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer src.Close() //nolint:errcheck // read only
	want, err := src.Stat()
	if err != nil {
		return false, err
	}
	have, err := os.Stat(to)
	if err == nil && have.Size() == want.Size() && have.ModTime().Equal(want.ModTime()) {
		return false, nil
	}
	if err == nil && have.Size() == want.Size() {
		// `go build` may write the same bytes again. That is no reason to restart every node.
		if equal, err := sameContent(from, to); err != nil || equal {
			return false, errors.Join(err, os.Chtimes(to, want.ModTime(), want.ModTime()))
		}
	}
	dst, err := os.CreateTemp(filepath.Dir(to), ".install.")
	if err != nil {
		return false, err
	}
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chmod(0o755), dst.Sync(), dst.Close(), os.Chtimes(dst.Name(), want.ModTime(), want.ModTime()))
	if err == nil {
		err = os.Rename(dst.Name(), to)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(dst.Name()))
	}
	return true, nil
}

func sameContent(a, b string) (bool, error) {
	x, err := fileDigest(a)
	if err != nil {
		return false, err
	}
	y, err := fileDigest(b)
	return x == y, err
}

func fileDigest(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close() //nolint:errcheck // read only
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}

func skipMissing(err error) error {
	if isMissing(err) {
		return nil
	}
	return err
}
