package cmdline

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/varvebackup/varve/internal/cli/failure"
)

// ParseCacheSize returns the number of bytes that --cache-size says.
func ParseCacheSize(text string) (int64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, failure.Usage("--cache-size %s: give a size such as 512Mi or 2Gi, or 0", text)
	}
	return q.Value(), nil
}
