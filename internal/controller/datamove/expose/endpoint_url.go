package expose

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/varvebackup/varve/internal/export/podspec"
)

// checkEndpointURL refuses a URL that is not that of a disk's map or data in a namespace. A mover pod is in Varve's namespace, and reaches
// what tenants do not: so it asks a Service of the backup's own namespace, or a proxy for an export of that namespace, and nobody else.
func checkEndpointURL(address, namespace, volume, kind string) error {
	u := parseEndpointURL(address)
	if u == nil {
		return fmt.Errorf("the %s endpoint %.200q of volume %s is no https URL", kind, address, volume)
	}
	disk := "/exports/" + url.PathEscape(volume) + "/" + kind
	if isServiceOf(u, namespace) && u.EscapedPath() == disk || isProxied(u.EscapedPath(), namespace, disk) {
		return nil
	}
	return fmt.Errorf("the %s endpoint %.200q of volume %s is neither that of a Service in namespace %s nor that of an export proxy", kind, address, volume, namespace)
}

// parseEndpointURL parses an https URL that has a host and a path alone. It returns nil for everything else.
func parseEndpointURL(address string) *url.URL {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" ||
		u.Opaque != "" {
		return nil
	}
	return u
}

// isServiceOf says that a URL leads to the HTTPS port of a Service in a namespace.
func isServiceOf(u *url.URL, namespace string) bool {
	service, rest, _ := strings.Cut(u.Hostname(), ".")
	return service != "" && (rest == namespace+".svc" || rest == namespace+".svc.cluster.local") && (u.Port() == "" || u.Port() == "443")
}

// isProxied says that a path is that of a disk in an export of a namespace, as export proxies have it.
func isProxied(path, namespace, disk string) bool {
	rest, found := strings.CutPrefix(path, podspec.ProxyPrefix+namespace+"/virtualmachineexports/")
	if !found {
		return false
	}
	export, found := strings.CutSuffix(rest, disk)
	return found && export != "" && export != "." && export != ".." && !strings.ContainsAny(export, "/%\\")
}
