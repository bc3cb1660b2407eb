package location

import (
	"slices"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// Choose returns the location of that name, or the default one if name is empty, or nil. One that is being deleted is
// not chosen.
func Choose(all []velerov1.BackupStorageLocation, name string) *velerov1.BackupStorageLocation {
	i := slices.IndexFunc(all, func(l velerov1.BackupStorageLocation) bool {
		return l.DeletionTimestamp == nil && (name != "" && l.Name == name || name == "" && l.Spec.Default)
	})
	if i < 0 {
		return nil
	}
	return &all[i]
}
