package virtualmachineexport

import (
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// linksOf returns where the export is served. Before it is, the internal link has only the authorities: the launcher of
// a backup needs them to make the pod ready.
func linksOf(in *input, serves bool) *exportv1.VirtualMachineExportLinks {
	links := &exportv1.VirtualMachineExportLinks{Internal: &exportv1.VirtualMachineExportLink{Cert: in.Authorities}}
	if !serves {
		return links
	}
	in.Source.addLinks(links.Internal, "https://"+podspec.ServiceHosts(in.Export.Namespace, in.Export.Name)[0])
	if in.Proxy.Host != "" {
		links.External = &exportv1.VirtualMachineExportLink{Cert: in.Proxy.Authorities}
		in.Source.addLinks(links.External, "https://"+in.Proxy.Host+proxyPath(in.Export))
	}
	return links
}

// proxyPath returns the path below which the export proxy serves an export, as upstream's does.
func proxyPath(export *exportv1.VirtualMachineExport) string {
	return "/api/" + exportv1.GroupVersion.String() + "/namespaces/" + export.Namespace + "/virtualmachineexports/" + export.Name
}
