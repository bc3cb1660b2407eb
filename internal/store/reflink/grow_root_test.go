//go:build root

package reflink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

// A head whose growth a crash interrupted has its size again. One that has data beyond its size is damaged, and loses
// nothing.
func TestOpen_undoesGrowthOfWhatIsBlank(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newFileSystem(t, kind)
			opened := s.openDisk(t, Options{})
			d := disktest.Disk{Disk: opened, TB: t}
			data := disktest.Noise(1, 5000)
			paths := map[disk.Name]string{}
			for _, name := range []disk.Name{"blank", "written", "tail"} {
				d.NewHead(name, disk.UID(name), "", 5000)
				d.Write(name, 0, data)
				paths[name] = filepath.Join(s.dir, volumesDir, "v-"+string(name), string(name), "head")
				if err := os.Truncate(paths[name], 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			for name, offset := range map[disk.Name]int64{"written": 1<<20 - 4096, "tail": 5001} {
				f, err := os.OpenFile(paths[name], os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt([]byte{1}, offset); err != nil {
					t.Error(err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := opened.Close(); err != nil {
				t.Fatal(err)
			}
			opened = s.openDisk(t, Options{})
			d.Disk = opened
			for name, want := range map[disk.Name]disk.State{
				"blank": disk.StateWritable, "written": disk.StateDamaged, "tail": disk.StateDamaged,
			} {
				info, err := os.Stat(paths[name])
				if err != nil {
					t.Fatal(err)
				}
				if got := d.Find(name); got.State != want || (info.Size() == 5000) != (want == disk.StateWritable) {
					t.Errorf("%+v, and the file has %d bytes", got, info.Size())
				}
			}
			if said := strings.Join(opened.Recovered(), "\n"); !strings.Contains(said, `cut "blank" back to 5000 bytes`) {
				t.Errorf("said:\n%s", said)
			}
		})
	}
}
