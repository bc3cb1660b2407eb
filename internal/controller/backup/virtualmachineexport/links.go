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
	addLinks(in, links.Internal, podspec.InternalLink, internalBase(in.Export))
	if in.Proxy.Host != "" {
		links.External = &exportv1.VirtualMachineExportLink{Cert: in.Proxy.Authorities}
		addLinks(in, links.External, podspec.ExternalLink, externalBase(in))
	}
	return links
}

// addLinks adds the addresses of everything that is served to a client on one of the ways to the export.
func addLinks(in *input, link *exportv1.VirtualMachineExportLink, way podspec.Link, base string) {
	in.Source.addLinks(link, base)
	if in.Source.machine() == "" {
		return
	}
	link.Manifests = []exportv1.VirtualMachineExportManifest{
		{Type: exportv1.ManifestAll, URL: base + podspec.AllManifestsPath(way)},
		{Type: exportv1.ManifestAuthHeader, URL: base + podspec.SecretManifestPath(way)},
	}
}

// internalBase returns the URL below which the export's Service serves it.
func internalBase(export *exportv1.VirtualMachineExport) string {
	return "https://" + podspec.ServiceHosts(export.Namespace, export.Name)[0]
}

// externalBase returns the URL below which the export proxy serves the export.
func externalBase(in *input) string {
	return "https://" + in.Proxy.Host + podspec.ProxyPath(in.Export.Namespace, in.Export.Name)
}

// endpointsOf returns where the map and the data of a volume are served below base.
func endpointsOf(volume, base string) exportv1.VirtualMachineExportBackup {
	return exportv1.VirtualMachineExportBackup{
		Name: volume,
		Endpoints: []exportv1.VirtualMachineExportBackupEndpoint{
			{Endpoint: exportv1.EndpointMap, URL: base + podspec.MapPath(volume)},
			{Endpoint: exportv1.EndpointData, URL: base + podspec.DataPath(volume)},
		},
	}
}
