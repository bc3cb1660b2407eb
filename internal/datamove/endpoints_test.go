package datamove

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
)

func TestParseBackupDisk_readsWhatIsThere(t *testing.T) {
	t.Parallel()
	config := map[string]string{ConfigSource: SourceEndpoints, ConfigBackup: "web-1", ConfigVolume: "root", "parallelFilesUpload": "3"}
	want := BackupDisk{Backup: "web-1", Volume: "root"}
	if got, err := ParseBackupDisk(config); err != nil || got != want || !ReadsEndpoints(config) {
		t.Errorf("%+v: %v", got, err)
	}
	for text, deletes := range map[string]bool{"true": true, "false": false} {
		config[ConfigDeleteBackup] = text
		if got, err := ParseBackupDisk(config); err != nil || got.DeleteBackup != deletes {
			t.Errorf("deleteBackup %s: %+v: %v", text, got, err)
		}
	}
	if machine := machineDisk(); ReadsEndpoints(machine.Config()) {
		t.Error("the disk of a running machine has no endpoints")
	}
}

func TestParseBackupDisk_namesWhatIsWrong(t *testing.T) {
	t.Parallel()
	valid := map[string]string{ConfigBackup: "web-1", ConfigVolume: "root"}
	for name, c := range map[string]struct{ key, value string }{
		"no backup":    {ConfigBackup, ""},
		"a bad backup": {ConfigBackup, "a/b"},
		"no volume":    {ConfigVolume, ""},
		"a path":       {ConfigVolume, "../root"},
		"a word":       {ConfigDeleteBackup, "perhaps"},
		"nothing":      {ConfigDeleteBackup, ""},
	} {
		config := maps.Clone(valid)
		config[c.key] = c.value
		if _, err := ParseBackupDisk(config); !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), "spec.dataMoverConfig: "+c.key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadBackup_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	for _, r := range []ReadBackup{{Version: ReadBackupVersion, Backup: "u"}, {Version: ReadBackupVersion, Backup: "u", Moved: true}} {
		if got, err := DecodeReadBackup(r.Encode()); err != nil || got != r {
			t.Errorf("%+v: %v", got, err)
		}
	}
	for _, text := range []string{``, `{}`, `{"version":1}`, `{"version":2,"backup":"u"}`, `{"version":1,"backup":"u","other":1}`} {
		if got, err := DecodeReadBackup(text); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
