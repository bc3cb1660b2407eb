package endpointaccess

import (
	"testing"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

func TestIsRead_onlyWhenEveryDiskIsStored(t *testing.T) {
	t.Parallel()
	of := func(volume string, deletes bool) datamove.BackupDisk {
		return datamove.BackupDisk{Backup: "web", Volume: volume, DeleteBackup: deletes}
	}
	stored := func(volume string, deletes bool) reader {
		return reader{asked: of(volume, deletes), stored: true, over: true}
	}
	for name, c := range map[string]struct {
		readers []reader
		want    bool
	}{
		"all, and all ask":        {[]reader{stored("root", true), stored("data", true)}, true},
		"all, and one asks":       {[]reader{stored("root", false), stored("data", true)}, true},
		"all, and nobody asks":    {[]reader{stored("root", false), stored("data", false)}, false},
		"one disk is missing":     {[]reader{stored("root", true)}, false},
		"one has failed":          {[]reader{stored("root", true), {asked: of("data", true), over: true}}, false},
		"one has failed and come": {[]reader{stored("root", true), {asked: of("data", true), over: true}, stored("data", true)}, true},
		"another one still reads": {[]reader{stored("root", true), stored("data", true), {asked: of("data", false)}}, false},
		"a failed one asks":       {[]reader{stored("root", false), stored("data", false), {asked: of("data", true), over: true}}, false},
		"nobody":                  {nil, false},
	} {
		b := &backupv1.VirtualMachineBackup{}
		b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root"}, {VolumeName: "data"}}
		if got := isRead(b, c.readers); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if isRead(&backupv1.VirtualMachineBackup{}, c.readers) {
			t.Errorf("%s: a backup without disks", name)
		}
	}
}
