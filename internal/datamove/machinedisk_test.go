package datamove

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
)

func machineDisk() MachineDisk {
	return MachineDisk{Machine: "db", Volume: "root", Tracker: "daily", ScratchClaim: "scratch", Group: "db-7f2a", Disks: 2}
}

func TestMachineDisk_survivesItsConfig(t *testing.T) {
	t.Parallel()
	untracked := machineDisk()
	untracked.Tracker = ""
	running := machineDisk()
	running.SkipQuiesce = true
	defined := machineDisk()
	defined.Definition = "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e"
	for _, d := range []MachineDisk{machineDisk(), untracked, running, defined} {
		config := d.Config()
		config["parallelFilesUpload"] = "3" // Velero's own
		if got, err := ParseMachineDisk(config); err != nil || got != d {
			t.Errorf("%v: %s", err, cmp.Diff(got, d))
		}
	}
}

func TestParseMachineDisk_namesWhatIsWrong(t *testing.T) {
	t.Parallel()
	valid := machineDisk()
	for name, c := range map[string]struct{ key, value, says string }{
		"no machine":           {ConfigMachine, "", "virtualMachine is missing"},
		"no volume":            {ConfigVolume, "", "volume is missing"},
		"no scratch claim":     {ConfigScratchClaim, "", "scratchClaim is missing"},
		"no group":             {ConfigGroup, "", "group is missing"},
		"no number":            {ConfigDisks, "", "disks"},
		"a bad machine":        {ConfigMachine, "Db", "virtualMachine"},
		"a path":               {ConfigVolume, "../root", "volume"},
		"a bad tracker":        {ConfigTracker, "a_b", "tracker"},
		"a bad claim":          {ConfigScratchClaim, "a/b", "scratchClaim"},
		"a group that is long": {ConfigGroup, strings.Repeat("g", 64), "group"},
		"a group with a dot":   {ConfigGroup, "a.b", "group"},
		"no disks":             {ConfigDisks, "0", "disks"},
		"too many disks":       {ConfigDisks, "65", "disks"},
		"a word":               {ConfigDisks, "two", "disks"},
		"no UID":               {ConfigDefinition, "web", "definition"},
		"a UID in capitals":    {ConfigDefinition, "7F2AD3C4-0B1E-4C55-9E0F-2D6A1B3C4D5E", "definition"},
		"another Secret":       {ConfigDefinition, "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e/../token", "definition"},
		"maybe frozen":         {ConfigSkipQuiesce, "maybe", "skipQuiesce"},
	} {
		config := maps.Clone(valid.Config())
		config[c.key] = c.value
		_, err := ParseMachineDisk(config)
		if !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), "spec.dataMoverConfig: "+c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseMachineDisk(nil); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "virtualMachine is missing; volume is missing") {
		t.Errorf("nothing: %v", err)
	}
}
