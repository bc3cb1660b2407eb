package datamove

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

func exportDisk() ExportDisk {
	return ExportDisk{Export: "web-1-disks", Group: "web-1", Definition: "0a0a0a0a-0000-4000-8000-00000000000a"}
}

func TestParseExportDisk_readsWhatConfigWrote(t *testing.T) {
	t.Parallel()
	for _, want := range []ExportDisk{exportDisk(), {Export: "e", Group: "g"}} {
		config := want.Config()
		if got, err := ParseExportDisk(config); err != nil || got != want || !ReadsExport(config) ||
			ReadsEndpoints(config) {
			t.Errorf("%+v: %v", got, err)
		}
	}
}

func TestParseExportDisk_namesWhatIsWrong(t *testing.T) {
	t.Parallel()
	disk := exportDisk()
	for name, c := range map[string]struct{ key, value string }{
		"no export":        {ConfigExport, ""},
		"a path":           {ConfigExport, "../web"},
		"no group":         {ConfigGroup, ""},
		"another's Secret": {ConfigDefinition, "web"},
	} {
		config := maps.Clone(disk.Config())
		config[c.key] = c.value
		if _, err := ParseExportDisk(config); !errors.Is(err, errclass.Invalid) ||
			!strings.Contains(err.Error(), "spec.dataMoverConfig: "+c.key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
