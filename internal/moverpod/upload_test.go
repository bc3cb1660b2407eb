package moverpod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

// What goes in comes out, on the other kind of volume as well.
func TestMove_diskFromDeviceToFileAndBack(t *testing.T) {
	t.Parallel()
	s, dir := newSite(t), t.TempDir()
	device := filepath.Join(dir, "device")
	content := writeSparse(t, device, 24*mib+512, map[int64][]byte{0: noise(mib, 1), 8 * mib: noise(3*mib+77, 2), 24 * mib: noise(512, 3)})
	report := s.upload(t, corev1.PersistentVolumeBlock, device)
	if report.TotalBytes != int64(len(content)) || report.IncrementalBytes < 4*mib || report.IncrementalBytes > 6*mib || report.ReadBytes < report.IncrementalBytes || report.ReadBytes > report.TotalBytes || report.StoredBytes < 4*mib || report.FullReason != "" || report.Repository != s.access.UniqueID {
		t.Errorf("%+v", report)
	}

	volume := filepath.Join(dir, "volume")
	if err := os.MkdirAll(filepath.Join(volume, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	down := s.newPod(t, newDownload(corev1.PersistentVolumeFilesystem, report.SnapshotID), volume)
	if got := down.run(t, datamove.Succeeded); got.TotalBytes != int64(len(content)) {
		t.Errorf("%+v", got)
	}
	image := filepath.Join(volume, datamove.ImageFile)
	wantContent(t, image, content)
	info, err := os.Stat(image)
	if err != nil || info.Mode().Perm() != imageMode || info.Size() != int64(len(content)) {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(volume); err != nil || len(left) != 2 {
		t.Errorf("the volume has %v, %v", left, err)
	}

	// The same bytes are nothing new.
	again := s.upload(t, corev1.PersistentVolumeFilesystem, volume)
	if again.IncrementalBytes != 0 || again.TotalBytes != int64(len(content)) {
		t.Errorf("%+v", again)
	}
	other := filepath.Join(dir, "other")
	writeSparse(t, other, int64(len(content)), map[int64][]byte{mib: noise(20*mib, 4)})
	s.newPod(t, newDownload(corev1.PersistentVolumeBlock, again.SnapshotID), other).run(t, datamove.Succeeded)
	wantContent(t, other, content)
}

func TestUpload_countsWhatHasChanged(t *testing.T) {
	t.Parallel()
	s, device := newSite(t), filepath.Join(t.TempDir(), "device")
	content := writeSparse(t, device, 16*mib, map[int64][]byte{0: noise(16*mib, 1)})
	s.upload(t, corev1.PersistentVolumeBlock, device)
	copy(content[5*mib:], noise(100, 9))
	if err := os.WriteFile(device, content, 0o600); err != nil {
		t.Fatal(err)
	}
	report := s.upload(t, corev1.PersistentVolumeBlock, device)
	if report.IncrementalBytes != 256<<10 || report.StoredBytes > mib {
		t.Errorf("%+v", report)
	}
}

func TestUpload_makesOneRestorePoint(t *testing.T) {
	t.Parallel()
	s, device := newSite(t), filepath.Join(t.TempDir(), "device")
	writeSparse(t, device, 2*mib, map[int64][]byte{0: noise(mib, 1)})
	job := newUpload(corev1.PersistentVolumeBlock)
	first := s.newPod(t, job, device).run(t, datamove.Succeeded)
	// The pod has died after the restore point was there, and before the report.
	if err := os.Remove(device); err != nil {
		t.Fatal(err)
	}
	second := s.newPod(t, job, device).run(t, datamove.Succeeded)
	if first.SnapshotID != second.SnapshotID || second.TotalBytes != 2*mib || second.IncrementalBytes != first.IncrementalBytes {
		t.Errorf("%+v, then %+v", first, second)
	}
	points := s.points(t)
	if len(points) != 1 || "varve1.disk."+points[0].ID+".app" != first.SnapshotID {
		verdict.Fatalf(t, "%d restore points, %s", len(points), first.SnapshotID)
	}
	p := points[0]
	if p.Source.String() != "varve@data-mover:/app/data" || p.Disks[0].Name != datamove.DiskName || p.Disks[0].Identity != "claim-1" {
		t.Errorf("%v of %v", p.Disks[0], p.Source)
	}
	want := map[string]string{datamove.LabelBackupName: "b1", datamove.LabelUploadName: "b1-x", datamove.LabelUploadNamespace: "velero"}
	if !cmp.Equal(p.Labels, want) {
		t.Errorf("labels %v", p.Labels)
	}
}

// A guest writes its disk's first bytes. They must not choose how the mover reads it.
func TestUpload_neverProbesTheFormat(t *testing.T) {
	t.Parallel()
	s, volume := newSite(t), t.TempDir()
	header := append([]byte("QFI\xfb\x00\x00\x00\x03"), noise(4096, 1)...)
	content := writeSparse(t, filepath.Join(volume, datamove.ImageFile), mib, map[int64][]byte{0: header})
	report := s.upload(t, corev1.PersistentVolumeFilesystem, volume)
	to := t.TempDir()
	s.newPod(t, newDownload(corev1.PersistentVolumeFilesystem, report.SnapshotID), to).run(t, datamove.Succeeded)
	wantContent(t, filepath.Join(to, datamove.ImageFile), content)
}

func TestDiskVolume_isOneImageAndNothingElse(t *testing.T) {
	t.Parallel()
	type files map[string]string // a name that ends with a slash is a directory, content that begins with > a link
	for name, c := range map[string]struct {
		files files
		want  bool
	}{
		"image":                    {files{"disk.img": "x"}, true},
		"image and lost+found":     {files{"disk.img": "x", "lost+found/": ""}, true},
		"nothing":                  {files{}, false},
		"only lost+found":          {files{"lost+found/": ""}, false},
		"something was found":      {files{"disk.img": "x", "lost+found/": "", "lost+found/#12": "x"}, false},
		"empty image":              {files{"disk.img": ""}, false},
		"another file":             {files{"disk.img": "x", "a": ""}, false},
		"hidden file":              {files{"disk.img": "x", ".a": ""}, false},
		"unfinished restore":       {files{"disk.img": "x", "disk.img.varve-restore": "{}"}, false},
		"image is a link":          {files{"disk.img": ">/etc/passwd"}, false},
		"image is a directory":     {files{"disk.img/": ""}, false},
		"lost+found is a file":     {files{"disk.img": "x", "lost+found": "x"}, false},
		"image in another place":   {files{"a/": "", "a/disk.img": "x"}, false},
		"name with other letters":  {files{"DISK.IMG": "x"}, false},
		"lost+found is a link":     {files{"disk.img": "x", "lost+found": ">/etc"}, false},
		"second image in a folder": {files{"disk.img": "x", "a/": ""}, false},
	} {
		dir := t.TempDir()
		for _, directories := range []bool{true, false} {
			for path, content := range c.files {
				at := filepath.Join(dir, path)
				var err error
				switch {
				case strings.HasSuffix(path, "/") != directories:
				case directories:
					err = os.Mkdir(at, 0o700)
				case strings.HasPrefix(content, ">"):
					err = os.Symlink(content[1:], at)
				default:
					err = os.WriteFile(at, []byte(content), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, err := isDiskVolume(dir); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := isDiskVolume(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("an absent volume is empty")
	}
}

// A disk without a history gets blocks that suit its size, or those that the object asks for. A history keeps its
// own. Nothing of a sparse disk is read, however large it is.
func TestUpload_blockSizeBySize(t *testing.T) {
	t.Parallel()
	const tib, kib256 = int64(1 << 40), int64(256 << 10)
	for name, c := range map[string]struct {
		bytes int64
		asked string
		want  int64
	}{
		"small":                  {mib, "", kib256},
		"2 TiB":                  {2 * tib, "", mib},
		"small, with large ones": {mib, "4MiB", 4 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			device := filepath.Join(t.TempDir(), "device")
			writeHole(t, device, c.bytes)
			upload := func(asked string) {
				p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), device)
				p.api.askBlockSize(asked)
				p.run(t, datamove.Succeeded)
			}
			upload(c.asked)
			upload("4MiB") // The history has one by now.
			points := s.points(t)
			if len(points) != 2 {
				t.Fatalf("%d restore points", len(points))
			}
			for _, point := range points {
				if d, err := point.Disk(datamove.DiskName); err != nil || d.BlockBytes != c.want || d.Bytes != c.bytes {
					verdict.Errorf(t, "a disk of %d bytes has blocks of %d, want %d (%v)", d.Bytes, d.BlockBytes,
						c.want, err)
				}
			}
		})
	}
	// No file system of a test machine has files of 16 TiB.
	for bytes, want := range map[int64]int64{
		2*tib - 1: kib256, 2 * tib: mib, 16*tib - 1: mib, 16 * tib: 4 * mib, 64 * tib: 4 * mib,
	} {
		if got := repository.BlockBytesFor(bytes); got != want {
			t.Errorf("a disk of %d bytes gets blocks of %d, want %d", bytes, got, want)
		}
	}
}

func TestUpload_refusesABlockSize(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	p.api.askBlockSize("3MiB")
	p.fails(t, `spec.dataMoverConfig: blockSize: invalid: block size "3MiB": 256KiB, 1MiB, 4MiB are offered`,
		"make the DataUpload again")
}

func (a *fakeAPI) askBlockSize(asked string) {
	a.change(func(o map[string]any) {
		o["spec"].(map[string]any)["dataMoverConfig"] = map[string]any{datamove.ConfigBlockSize: asked}
	})
}

// writeHole makes a file of a size that has no data.
func writeHole(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
