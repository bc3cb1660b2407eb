package moverpod

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/verdict"
)

// Another cluster has the bucket, the password, and the snapshotID of a DataDownload. That is enough, and nothing is written.
func TestDownload_inAnotherCluster(t *testing.T) {
	t.Parallel()
	here := newSite(t)
	device := newDevice(t, 2*mib)
	disk := here.upload(t, block, device)
	volume := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(volume, name), noise(mib, uint64(name[0])), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	files := here.upload(t, filesystem, volume)

	before := readTree(t, here.access.Directory)
	there := &site{access: datamove.Access{Password: testPassword, Directory: here.access.Directory, ReadOnly: true}, at: here.at, dir: t.TempDir()}
	var err error
	// As the controller of repositories learns it.
	if there.access.UniqueID, err = repositoryaccess.NewStore(time.Now, nil).Prepare(t.Context(), there.access, location.Lock{}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	there.newPod(t, newDownload(filesystem, disk.SnapshotID), target).run(t, datamove.Succeeded)
	wantContent(t, filepath.Join(target, datamove.ImageFile), content)
	target = t.TempDir()
	there.newPod(t, newDownload(filesystem, files.SnapshotID), target).run(t, datamove.Succeeded)
	if !maps.Equal(readTree(t, volume), readTree(t, target)) {
		verdict.Errorf(t, "the files are others")
	}
	there.newPod(t, newUpload(filesystem), volume).fails(t, "read-only")
	if !maps.Equal(before, readTree(t, here.access.Directory)) {
		verdict.Errorf(t, "a cluster that may only read has written")
	}
}
