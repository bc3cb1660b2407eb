package recipe

import (
	"context"

	"github.com/varvebackup/varve/images/internal/debian"
)

// LibnbdDir returns a directory with libnbd, its headers and the libraries that it depends on, from the release that
// KubeVirt's images have. The libnbd of an older Debian lacks calls that KubeVirt makes.
func (k *Kitchen) LibnbdDir(ctx context.Context) (string, error) {
	return k.Debian.Dir(ctx, "libnbd", debian.Root{
		Suite:       Suite,
		Variant:     "extract",
		Packages:    []string{"libnbd-dev"},
		Drop:        debian.Docs,
		DropVersion: debian.DocsVersion,
	})
}
