package expose

import (
	"fmt"
	"net/url"
	"slices"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
)

// exportedFile returns where the disk of a claim is read as one file in an export that is Ready. KubeVirt's exports
// have disks so, and no maps: as the format raw, or, on a Filesystem volume that no DataVolume has made, as a file in
// the format dir. Both answer requests for ranges.
func exportedFile(name string, o *exportv1.VirtualMachineExport, claim string) (*datamove.EndpointSource, error) {
	volumes := o.Status.Links.Internal.Volumes
	i := slices.IndexFunc(volumes, func(v exportv1.VirtualMachineExportVolume) bool { return v.Name == claim })
	if i < 0 {
		return nil, refuse("%s does not serve PersistentVolumeClaim %s: the machine has no disk on it", name, claim)
	}
	urls := map[exportv1.ExportVolumeFormat]string{}
	for _, f := range volumes[i].Formats {
		urls[f.Format] = f.URL
	}
	var address string
	switch {
	case urls[exportv1.FormatRaw] != "":
		address = urls[exportv1.FormatRaw]
	case urls[exportv1.FormatDir] != "":
		var err error
		if address, err = url.JoinPath(urls[exportv1.FormatDir], datamove.ImageFile); err != nil {
			return nil, refuse("%s: the address of PersistentVolumeClaim %s: %w", name, claim, err)
		}
	default:
		return nil, refuse("%s serves PersistentVolumeClaim %s neither as the format %s nor as %s", name, claim,
			exportv1.FormatRaw, exportv1.FormatDir)
	}
	from := &datamove.EndpointSource{Data: address, Export: true, Volume: claim, BackupUID: o.UID}
	served := claim
	if o.Spec.Source.Kind == exportv1.SourceSnapshot {
		// KubeVirt makes a claim from each VolumeSnapshot, and serves that under the name of the machine's claim.
		served, from.FullReason = o.Name+"-"+claim, datamove.FullNotTracked
	}
	if err := checkFileURL(address, o.Namespace, served); err != nil {
		return nil, refuse("%s: %w", name, err)
	}
	return from, nil
}

// checkFileURL is checkEndpointURL for a disk that KubeVirt's exports have as one file.
func checkFileURL(address, namespace, claim string) error {
	u := parseEndpointURL(address)
	if u == nil {
		return fmt.Errorf("the address %.200q of PersistentVolumeClaim %s is not an https URL", address, claim)
	}
	raw := "/volumes/" + url.PathEscape(claim) + "/"
	files := []string{raw + datamove.ImageFile, raw + "dir/" + datamove.ImageFile}
	if isServiceOf(u, namespace) && slices.Contains(files, u.EscapedPath()) {
		return nil
	}
	return fmt.Errorf("the address %.200q of PersistentVolumeClaim %s is not that of its disk at a Service in "+
		"namespace %s", address, claim, namespace)
}
