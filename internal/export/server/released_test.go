package server_test

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"

	upstream "kubevirt.io/api/backup/v1alpha1"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/verdict"
)

// releasedClient reads backups as a client of KubeVirt 1.8's API does. It knows the backup's status in upstream's types,
// which have one type for all disks, and has a copy of each disk from the previous backup.
type releasedClient struct {
	site   *site
	status upstream.VirtualMachineBackupStatus
}

// update brings the copy of a disk up to date: everything for a full backup, what is dirty for an incremental one.
// It returns the number of bytes that it fetched.
func (c releasedClient) update(t *testing.T, volume upstream.BackupVolumeInfo, disk []byte) (fetched int64) {
	t.Helper()
	for _, e := range c.allExtents(t, volume) {
		part := disk[e.Offset : e.Offset+e.Length]
		switch {
		case c.status.Type == upstream.Incremental && e.Type&1 == 0: // clean
			continue
		case c.status.Type == upstream.Full && e.Type&2 != 0: // reads as zeroes
			clear(part)
			continue
		}
		query := url.Values{"offset": {strconv.FormatInt(e.Offset, 10)}, "length": {strconv.FormatInt(e.Length, 10)}}
		got := c.site.ask(t, http.MethodGet, volume.DataEndpoint+"?"+query.Encode())
		if got.status != http.StatusOK || int64(len(got.body)) != e.Length {
			t.Fatalf("%s %v: status %d, %d bytes", volume.DataEndpoint, query, got.status, len(got.body))
		}
		fetched += int64(copy(part, got.body))
	}
	return fetched
}

func (c releasedClient) allExtents(t *testing.T, volume upstream.BackupVolumeInfo) (extents []extentJSON) {
	t.Helper()
	for offset := int64(0); ; {
		page := c.site.askMap(t, volume.VolumeName, url.Values{"offset": {strconv.FormatInt(offset, 10)}, "page_size": {"5"}})
		extents = append(extents, page.Extents...)
		if page.NextOffset == nil {
			return extents
		}
		offset = *page.NextOffset
	}
}

// A machine has a disk that has its base and one that is new. A client of the released API knows that its backup is
// incremental, and nothing of a type for each disk.
func TestMap_releasedClientGetsEveryDisk(t *testing.T) {
	t.Parallel()
	const size = 2<<20 + 512
	cases := map[string]struct {
		backup upstream.BackupType
		disks  []*exporttest.Volume
	}{
		"both full": {upstream.Full, []*exporttest.Volume{
			exporttest.NewVolume("root", size, false, 1), exporttest.NewVolume("data", size, false, 2),
		}},
		"both incremental": {upstream.Incremental, []*exporttest.Volume{
			exporttest.NewVolume("root", size, true, 1), exporttest.NewVolume("data", size, true, 2),
		}},
		"the second is new": {upstream.Incremental, []*exporttest.Volume{
			exporttest.NewVolume("root", size, true, 1), exporttest.NewVolume("data", size, false, 2),
		}},
		"the first is new": {upstream.Incremental, []*exporttest.Volume{
			exporttest.NewVolume("root", size, false, 1), exporttest.NewVolume("data", size, true, 2),
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openVolumes(t, server.Config{}, c.disks[0], c.disks[1])
			client := releasedClient{site: s, status: upstream.VirtualMachineBackupStatus{Type: c.backup}}
			for _, disk := range c.disks {
				name := disk.Description.Name
				volume := upstream.BackupVolumeInfo{VolumeName: name, DataEndpoint: "/exports/" + name + "/data", MapEndpoint: "/exports/" + name + "/map"}
				held := slices.Repeat([]byte{0xaa}, size) // of a disk that the client must not rely on
				want := int64(0)
				for i, dirty := range disk.Dirty {
					from, to := i*exporttest.BlockBytes, min((i+1)*exporttest.BlockBytes, size)
					switch {
					case disk.Description.Incremental && !dirty:
						copy(held[from:to], disk.Content[from:])
					case c.backup == upstream.Incremental || !bytes.Equal(disk.Content[from:to], make([]byte, to-from)):
						want += int64(to - from)
					}
				}
				if fetched := client.update(t, volume, held); fetched != want {
					t.Errorf("disk %s: the client fetches %d bytes, want %d", name, fetched, want)
				}
				if !bytes.Equal(held, disk.Content) {
					verdict.Errorf(t, "disk %s: the client's copy is wrong", name)
				}
			}
		})
	}
}

// In both dialects at once, the regions of a full disk keep their zeroes while its extents are dirty.
func TestMap_fullDiskOfAnIncrementalInBothDialects(t *testing.T) {
	t.Parallel()
	root, data := exporttest.NewVolume("root", 1<<20, true, 1), exporttest.NewVolume("data", 1<<20, false, 2)
	page := openVolumes(t, server.Config{}, root, data).askMap(t, "data", nil)
	if len(page.Extents) != 1 || page.Extents[0] != (extentJSON{0, 1 << 20, 1, "dirty"}) {
		t.Errorf("extents %+v", page.Extents)
	}
	if !slices.ContainsFunc(page.Regions, func(r regionJSON) bool { return r.Type == "zero" }) ||
		slices.ContainsFunc(page.Regions, func(r regionJSON) bool { return r.Type != "zero" && r.Type != "data" }) {
		t.Errorf("regions %+v", page.Regions)
	}
}
