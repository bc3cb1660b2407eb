package expose

import "testing"

func TestCheckFileURL_leadsToTheNamespace(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"https://virt-export-web.app.svc/volumes/web-root/disk.img":     true,
		"https://virt-export-web.app.svc/volumes/web-root/dir/disk.img": true,

		"": false,
		"http://virt-export-web.app.svc/volumes/web-root/disk.img":           false,
		"https://virt-export-web.app.svc:6443/volumes/web-root/disk.img":     false,
		"https://virt-export-web.app.svc/volumes/web-data/disk.img":          false,
		"https://virt-export-web.app.svc/volumes/web-root/dir/other":         false,
		"https://virt-export-web.app.svc/volumes/web-root/../disk.img":       false,
		"https://virt-export-web.app.svc/volumes/web-root/disk.img?x":        false,
		"https://virt-export-web.other.svc/volumes/web-root/disk.img":        false,
		"https://virt-export-web.app.svc.example.com/volumes/web-root/disk.": false,
		"https://169.254.169.254/volumes/web-root/disk.img":                  false,
	} {
		if err := checkFileURL(address, "app", "web-root"); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestCheckEndpointURL_leadsToTheNamespace(t *testing.T) {
	t.Parallel()
	const proxy = "https://virt-exportproxy.example.com:8443/api/export.kubevirt.io/v1beta1/namespaces/app/virtualmachineexports/"
	for address, good := range map[string]bool{
		"https://virt-export-web.app.svc/exports/root/map":                   true,
		"https://virt-export-web.app.svc.cluster.local:443/exports/root/map": true,
		proxy + "web-1/exports/root/map":                                     true,

		"": false,
		"http://virt-export-web.app.svc/exports/root/map":              false,
		"https://virt-export-web.app.svc:6443/exports/root/map":        false,
		"https://virt-export-web.app.svc/exports/root/data":            false,
		"https://virt-export-web.app.svc/exports/other/map":            false,
		"https://virt-export-web.app.svc/exports/x/../root/map":        false,
		"https://virt-export-web.app.svc/exports/root/map?token=x":     false,
		"https://virt-export-web.app.svc/exports/root/map#x":           false,
		"https://user:x@virt-export-web.app.svc/exports/root/map":      false,
		"https://virt-export-web.other.svc/exports/root/map":           false,
		"https://virt-export-web.app.svc.example.com/exports/root/map": false,
		"https://app.svc/exports/root/map":                             false,
		"https://.app.svc/exports/root/map":                            false,
		"https://a.b.app.svc/exports/root/map":                         false,
		"https://169.254.169.254/exports/root/map":                     false,
		"https://[::1]/exports/root/map":                               false,
		"https://kubernetes.default.svc/exports/root/map":              false,
		"https://x.example.com/api/export.kubevirt.io/v1beta1/secrets": false,
		proxy + "/exports/root/map":                                    false,
		proxy + "a/b/exports/root/map":                                 false,
		proxy + "%2e%2e/exports/root/map":                              false,
		proxy + "../exports/root/map":                                  false,
		proxy + "web/exports/root/data":                                false,
		"https://p.example.com/api/export.kubevirt.io/v1beta1/namespaces/other/virtualmachineexports/web/exports/root/map": false,
		"https://p.example.com/x/api/export.kubevirt.io/v1beta1/namespaces/app/virtualmachineexports/web/exports/root/map": false,
	} {
		if err := checkEndpointURL(address, "app", "root", "map"); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
}
