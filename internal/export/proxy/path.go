package proxy

import (
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/varvebackup/varve/internal/export/podspec"
)

// target is what a request asks for.
type target struct {
	namespace, export string
	// path is what the export is asked for. It begins with a slash and is escaped as the client has it.
	path string
}

// parseTarget returns what a path names. The names in it are valid ones: they become a part of a host's name.
func parseTarget(u *url.URL) (target, bool) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), podspec.ProxyPrefix)
	if !ok {
		return target{}, false
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) != 4 || parts[1] != podspec.ProxyResource {
		return target{}, false
	}
	t := target{namespace: parts[0], export: parts[2], path: "/" + parts[3]}
	valid := len(validation.IsDNS1123Label(t.namespace)) == 0 && len(validation.IsDNS1123Subdomain(t.export)) == 0
	path, err := url.PathUnescape(t.path)
	// The readiness path takes every token for good. The export compares paths without escapes.
	return t, valid && err == nil && path != podspec.ReadinessPath
}

// host returns the name of the export's Service.
func (t target) host() string { return podspec.ServiceHosts(t.namespace, t.export)[0] }

// url returns the address of what is asked for.
func (t target) url(query string) (*url.URL, error) {
	path, err := url.PathUnescape(t.path)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: t.host(), Path: path, RawPath: t.path, RawQuery: query}, nil
}
