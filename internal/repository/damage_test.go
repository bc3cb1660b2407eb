package repository

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// blobsOf returns the directory with the blobs of a test's repository.
func blobsOf(configFile string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(configFile)), "blobs")
}

// blobFiles returns the files of a filesystem repository whose blobs' names begin with prefix.
func blobFiles(tb testing.TB, configFile, prefix string) []string {
	tb.Helper()
	root := blobsOf(configFile)
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if name := strings.ReplaceAll(relative, string(filepath.Separator), ""); strings.HasPrefix(name, prefix) && strings.HasSuffix(name, ".f") {
			out = append(out, path)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		tb.Fatalf("no blobs %s*: %v", prefix, err)
	}
	return out
}

// whatHappens is what happens to a blob. other is another blob of its kind, and in is where the content in question lies.
var whatHappens = map[string]func(data, other []byte, in span) []byte{
	"bit flipped": func(d, _ []byte, in span) []byte { d[in.middle()] ^= 0x40; return d },
	"truncated":   func(d, _ []byte, in span) []byte { return d[:in.middle()] },
	"zeroed":      func(d, _ []byte, in span) []byte { clear(d[in.start:in.end]); return d },
	"empty":       func([]byte, []byte, span) []byte { return nil },
	"swapped":     func(_, other []byte, _ span) []byte { return other },
	"missing":     nil,
}

// kinds are the kinds of blobs by the prefixes of their names. data says that they hold what nothing else does. few says that the
// unit tests leave them out.
var kinds = map[string]struct {
	prefix, content string
	data, few       bool
}{
	"pack":         {prefix: "p", data: true},
	"metadata":     {prefix: "q", data: true},
	"manifest":     {prefix: "q", content: manifest.ContentPrefix},
	"index":        {prefix: "x"},
	"format":       {prefix: "kopia.repository"},
	"object locks": {prefix: "kopia.blobcfg", few: true},
	"format copy":  {prefix: string(storage.FormatCopy), few: true},
	"record":       {prefix: storage.RecordPrefix, few: true},
}

// The most frequent damage is tested here, and everything with the peers.
func TestDamage_isFoundAndNeverRestored(t *testing.T) {
	t.Parallel()
	everyDamage(t, func(damage string, few bool) bool { return !few && (damage == "bit flipped" || damage == "missing") })
}

// Whatever happens to a blob: opening or verifying reports it and names what it affects, no restore gives wrong bytes, what is
// undamaged still restores, and repair brings back everything that is in the repository twice.
func everyDamage(t *testing.T, wanted func(damage string, few bool) bool) {
	t.Helper()
	for kind, k := range kinds {
		for name, damage := range whatHappens {
			if k.content != "" && name != "bit flipped" && name != "zeroed" {
				continue // The kind metadata covers damage to whole blobs.
			}
			if !wanted(name, k.few) {
				continue
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				newDamaged(t).run(t, k.prefix, k.content, k.data, damage)
			})
		}
	}
}

// span is a part of a blob.
type span struct{ start, end int }

func (s span) middle() int { return (s.start + s.end) / 2 }

// damagedRepository has a good and a bad restore point, each in blobs of its own.
type damagedRepository struct {
	config string
	held   map[string][]byte
	// good and bad are the IDs of two restore points in held.
	good, bad string
	// before holds the files that existed before the bad one.
	before map[string]bool
	// inside holds the contents in packs, by their blob and the prefix of their IDs.
	inside map[string]map[string]span
}

func newDamaged(t *testing.T) *damagedRepository {
	t.Helper()
	r, config := newRepository(t)
	d := &damagedRepository{config: config, held: map[string][]byte{}, before: map[string]bool{}, inside: map[string]map[string]span{}}
	random := rand.New(rand.NewPCG(1, 2))
	backUp := func(path string) string {
		disk := &memory{data: make([]byte, 3*mib+17)}
		disk.write(random, extent.Extent{Offset: mib, Length: 2 * mib}, false)
		source := testSource
		source.Path = path
		p, err := r.Backup(t.Context(), Request{Source: source, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
		if err != nil {
			t.Fatal(err)
		}
		d.held[p.ID] = disk.data
		return p.ID
	}
	d.good = backUp("/good")
	for _, f := range blobFiles(t, config, "") {
		d.before[f] = !strings.Contains(f, "kopia.") && !strings.Contains(f, string(storage.FormatCopy))
	}
	d.bad = backUp("/bad")
	err := r.conn.Kopia.ContentReader().IterateContents(t.Context(), content.IterateOptions{}, func(info content.Info) error {
		of := d.inside[string(info.PackBlobID)]
		if of == nil {
			of = map[string]span{}
			d.inside[string(info.PackBlobID)] = of
		}
		of[string(info.ContentID.Prefix())] = span{int(info.PackOffset), int(info.PackOffset + info.PackedLength)}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// where returns the part of a file to damage: a content with the prefix, any content of a pack, or the whole file.
func (d *damagedRepository) where(file, prefix string, length int) (span, bool) {
	for blob, contents := range d.inside {
		if !strings.HasSuffix(blob, strings.TrimSuffix(filepath.Base(file), ".f")) {
			continue
		}
		if in, ok := contents[prefix]; ok || prefix != "" {
			return in, ok
		}
		for _, in := range contents {
			return in, true
		}
	}
	return span{0, length}, true
}

func (d *damagedRepository) damage(t *testing.T, prefix, content string, damage func([]byte, []byte, span) []byte) {
	t.Helper()
	var other []byte
	for _, f := range blobFiles(t, d.config, prefix) {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if d.before[f] {
			other = data
		}
	}
	if other == nil {
		other = []byte("{}")
	}
	done := 0
	for _, f := range blobFiles(t, d.config, prefix) {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		in, ok := d.where(f, content, len(data))
		if d.before[f] || !ok {
			continue
		}
		done++
		if damage == nil {
			err = os.Remove(f)
		} else {
			err = os.WriteFile(f, damage(data, other, in), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if done == 0 {
		t.Fatal("nothing was damaged")
	}
}

func (d *damagedRepository) run(t *testing.T, prefix, content string, data bool, damage func([]byte, []byte, span) []byte) {
	t.Helper()
	d.damage(t, prefix, content, damage)
	fresh, err := Open(t.Context(), d.config, testPassword)
	switch {
	case err == nil:
		d.verified(t, fresh)
		if content == manifest.ContentPrefix {
			d.unwritable(t, fresh)
		}
		d.restores(t, fresh, false)
		if err := fresh.Close(t.Context()); err != nil {
			t.Error(err)
		}
	case !errors.Is(err, errclass.Corrupt):
		t.Errorf("not told as corrupt: %v", err)
	}
	report, err := Repair(t.Context(), d.config, testPassword, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", report)
	fresh = open(t, d.config)
	if data {
		// The data is gone. Without it the repository is as good as new.
		d.restores(t, fresh, false)
		if err := fresh.Delete(t.Context(), d.bad); err != nil && !errors.Is(err, errclass.NotFound) {
			t.Error(err)
		}
	} else {
		d.restores(t, fresh, true)
	}
	if err := fresh.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Error(err)
	}
	after, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil || after.Damaged() {
		verdict.JudgeErrorf(t, err == nil, "after all: %+v, %v", after, err)
	}
	d.restores(t, fresh, !data)
}

// verified checks that verify finds the damage and blames nothing else.
func (d *damagedRepository) verified(t *testing.T, r *Repository) {
	t.Helper()
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Damaged() && len(blobFiles(t, d.config, storage.RecordPrefix)) == len(d.held) {
		verdict.Errorf(t, "verify found nothing") // A missing record looks as if it had not been stored yet.
	}
	for _, x := range report.Damage {
		if x.Point.ID != d.bad {
			t.Errorf("verify blames %s: %v", x.Point.ID, x.Err)
		}
	}
}

// unwritable checks that what needs the manifests reports that they are damaged, and does nothing.
func (d *damagedRepository) unwritable(t *testing.T, r *Repository) {
	t.Helper()
	disk := &memory{data: []byte("disk")}
	_, backup := r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	_, pin := r.Pin(t.Context(), d.good, []string{"x"}, nil)
	for name, err := range map[string]error{
		"backup": backup, "pin": pin, "delete": r.Delete(t.Context(), d.good),
		"maintenance": r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}),
	} {
		if !errors.Is(err, errclass.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// restores checks that whatever is restored is right, that what was not damaged is restored, and everything if all is said to be
// well.
func (d *damagedRepository) restores(t *testing.T, r *Repository, well bool) {
	t.Helper()
	points, err := r.List(t.Context(), nil)
	if err != nil && (well || !errors.Is(err, errclass.Corrupt)) {
		t.Error(err)
	}
	good := 0
	for _, p := range points {
		got := make([]byte, len(d.held[p.ID]))
		image, err := r.Image(t.Context(), p.Disks[0])
		if err == nil {
			err = image.ReadAt(t.Context(), got, 0)
		}
		switch {
		case err == nil && bytes.Equal(got, d.held[p.ID]):
			good++
		case err == nil:
			verdict.Errorf(t, "wrong bytes of %s", p.ID)
		case !errors.Is(err, errclass.Corrupt):
			t.Errorf("not told as corrupt: %v", err)
		case p.ID != d.bad || well:
			verdict.Errorf(t, "restore point %s: %v", p.ID, err)
		}
	}
	if good == 0 || well && good < len(d.held) {
		verdict.Errorf(t, "%d of %d restore points", good, len(d.held))
	}
}

// Damage of a restore point's description alone is damage, too, and not a storage that does not answer.
func TestDamage_ofADescription(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	_, point := twoRegions(t, r)
	where := map[string]int{}
	err := r.conn.Kopia.ContentReader().IterateContents(t.Context(), content.IterateOptions{}, func(info content.Info) error {
		if info.ContentID.Prefix() == "k" {
			where[string(info.PackBlobID)] = int(info.PackOffset + info.PackedLength/2)
		}
		return nil
	})
	if err != nil || len(where) == 0 {
		t.Fatalf("descriptions in %v: %v", where, err)
	}
	for name, at := range where {
		f := blobFiles(t, config, name)[0]
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		data[at] ^= 1
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fresh := open(t, config)
	// The manifest repeats the description.
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) != 1 {
		t.Fatalf("%d restore points: %v", len(points), err)
	}
	image, err := fresh.Image(t.Context(), points[0].Disks[0])
	if err == nil {
		err = image.ReadAt(t.Context(), make([]byte, image.Disk.Bytes), 0)
	}
	if err != nil {
		t.Error(err)
	}
	report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil || !errors.Is(report.Unlisted, errclass.Corrupt) || !strings.Contains(report.Unlisted.Error(), point.ID) || len(report.Points) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
