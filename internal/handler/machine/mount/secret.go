package mount

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// longestSecret is the longest content that ReadSecret returns, in bytes.
const longestSecret = 4 << 10

// ReadSecret returns a file of a Secret that the kubelet has brought to the node as a volume of a pod. It returns an error
// that is os.ErrNotExist if the pod, the volume or the key is not there.
func (m *Mounts) ReadSecret(pod types.UID, volume, key string) ([]byte, error) {
	for _, element := range []string{volume, key} {
		if err := checkElement(element); err != nil {
			return nil, err
		}
	}
	rel, err := joinBelow(pod, "volumes", "kubernetes.io~secret", volume)
	if err != nil {
		return nil, err
	}
	dir, err := openDir(m.root, rel)
	if err != nil {
		return nil, fmt.Errorf("secret volume %s of pod %s: %w", volume, pod, err)
	}
	defer dir.Close() //nolint:errcheck // a handle
	// The kubelet replaces a Secret by a link to another directory beside it, so links are followed as far as they stay below dir.
	file, err := openHow(fdOf(dir), key, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("key %s of secret volume %s of pod %s: %w", key, volume, pod, err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	content, err := io.ReadAll(io.LimitReader(file, longestSecret+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("key %s of secret volume %s of pod %s: %w", key, volume, pod, err)
	case len(content) > longestSecret:
		return nil, fmt.Errorf("key %s of secret volume %s of pod %s: more than %d bytes", key, volume, pod, longestSecret)
	}
	return content, nil
}
