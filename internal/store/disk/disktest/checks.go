package disktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	mib     = 1 << 20
	oddSize = 1_000_001
)

func checkArguments(t *testing.T, d Disk) {
	ctx := t.Context()
	for _, s := range []disk.Source{
		{UID: "", Volume: "v", Bytes: 1},
		{UID: "A", Volume: "v", Bytes: 1},
		{UID: "../a", Volume: "v", Bytes: 1},
		{UID: "a", Volume: "", Bytes: 1},
		{UID: "a", Volume: "v", Bytes: 0},
		{UID: "a", Volume: "v", Bytes: -1},
	} {
		wantClass(t, d.Create(ctx, "a", s), errclass.Invalid)
	}
	for _, name := range []disk.Name{"", "a\x00", "a\nb", "\xff", disk.Name(strings.Repeat("a", disk.MaxNameBytes+1))} {
		wantClass(t, d.Create(ctx, name, disk.Source{UID: "a", Volume: "v", Bytes: 1}), errclass.Invalid)
	}
	d.NewHead("a", "a", "", mib)
	seal := disk.Seal{UID: "b", Kind: disk.KindHead}
	wantClass(t, d.Snapshot(ctx, "a", "b", seal), errclass.Invalid, "snapshot or image")
	seal = disk.Seal{UID: "b", Kind: disk.KindImage, Checksum: "00"}
	wantClass(t, d.Snapshot(ctx, "a", "b", seal), errclass.Invalid, "SHA-512")
	for _, err := range d.Changed(ctx, "a", "a") {
		wantClass(t, err, errclass.Invalid, "is a head")
	}
	from := disk.Source{UID: "c", Volume: "v", From: "a", Bytes: mib}
	wantClass(t, d.Create(ctx, "c", from), errclass.Invalid, "is a head")
	_, err := d.Open(ctx, "none")
	for _, err := range []error{
		err, d.Delete(ctx, "none"), d.Snapshot(ctx, "none", "b", disk.Seal{UID: "b", Kind: disk.KindImage}),
		d.Create(ctx, "c", disk.Source{UID: "c", Volume: "v", From: "none", Bytes: mib}),
	} {
		wantClass(t, err, errclass.NotFound, `"none"`)
	}
}

func checkCreate(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(1, oddSize)
	longest := disk.Name(strings.Repeat("x", disk.MaxNameBytes))
	for i, name := range []disk.Name{"ubuntu-22.04", "a/b", "..", "日本 語", longest} {
		d.NewImage(name, disk.UID(fmt.Sprint("i", i)), data)
		wantBytes(t, string(name), d.Read(name), data)
	}
	from := disk.Source{UID: "h1", Volume: "v1", From: "ubuntu-22.04", Bytes: 3*mib + 1}
	for range 2 { // again is success
		d.must(d.Create(ctx, "h1", from))
	}
	want := disk.Object{
		Name: "h1", UID: "h1", Volume: "v1", Parent: "i0", Kind: disk.KindHead, Bytes: 3*mib + 1, State: disk.StateWritable,
	}
	if diff := cmp.Diff(want, d.Find("h1")); diff != "" {
		t.Error(diff)
	}
	wantBytes(t, "grown clone", d.Read("h1"), append(bytes.Clone(data), make([]byte, from.Bytes-oddSize)...))

	other := []disk.Source{from, from, from}
	other[0].Bytes++
	other[1].From = "a/b"
	other[2].Volume = "v2"
	for _, s := range other {
		wantClass(t, d.Create(ctx, "h1", s), errclass.Conflict, `"h1"`)
	}
	wantClass(t, d.Create(ctx, "other name", from), errclass.Conflict)
	from.UID = "h2"
	wantClass(t, d.Create(ctx, "h1", from), errclass.Conflict, "there already")
	from.Bytes = oddSize - 1
	wantClass(t, d.Create(ctx, "h2", from), errclass.Invalid, "fewer than")

	d.Write("h1", 5, []byte("changed"))
	d.NewSnapshot("h1", "s1", "s1") // the head's parent is another one now
	from = disk.Source{UID: "h1", Volume: "v1", From: "ubuntu-22.04", Bytes: 3*mib + 1}
	d.must(d.Create(ctx, "h1", from))
	wantBytes(t, "image", d.Read("ubuntu-22.04"), data)
}

func checkSnapshot(t *testing.T, d Disk) {
	ctx := t.Context()
	d.NewHead("h", "h", "", oddSize)
	first, second := Noise(2, oddSize), Noise(3, oddSize)
	d.Write("h", 0, first)
	seal := disk.Seal{UID: "s1", Kind: disk.KindSnapshot, Checksum: Checksum(second)}
	wantClass(t, d.Snapshot(ctx, "h", "s1", seal), errclass.Corrupt, Checksum(first))
	seal.Checksum = Checksum(first)
	for range 2 {
		d.must(d.Snapshot(ctx, "h", "s1", seal))
	}
	d.Write("h", 0, second)
	d.NewSnapshot("h", "s2", "s2")
	d.Write("h", 0, Noise(4, 4096))
	wantBytes(t, "s1", d.Read("s1"), first)
	wantBytes(t, "s2", d.Read("s2"), second)
	want := []disk.Object{
		{Name: "h", UID: "h", Volume: "v-h", Parent: "s2", Kind: disk.KindHead, Bytes: oddSize, State: disk.StateWritable},
		{
			Name: "s1", UID: "s1", Volume: "v-h", Kind: disk.KindSnapshot, Bytes: oddSize, State: disk.StateReady,
			Checksum: seal.Checksum,
		},
		{Name: "s2", UID: "s2", Volume: "v-h", Parent: "s1", Kind: disk.KindSnapshot, Bytes: oddSize, State: disk.StateReady},
	}
	if diff := cmp.Diff(want, d.Objects()); diff != "" {
		t.Error(diff)
	}
	wantClass(t, d.Snapshot(ctx, "h", "s3", seal), errclass.Conflict)
	wantClass(t, d.Snapshot(ctx, "s1", "s3", disk.Seal{UID: "s3", Kind: disk.KindSnapshot}), errclass.Invalid,
		"not a head")
	seal.Kind = disk.KindImage
	wantClass(t, d.Snapshot(ctx, "h", "s1", seal), errclass.Conflict)

	// Its clones within the replica become those of its parent.
	d.must(d.Delete(ctx, "s2"))
	if o := d.Find("h"); o.Parent != "s1" {
		t.Errorf("the head's parent is %q", o.Parent)
	}
	d.must(d.Delete(ctx, "h"))
	wantBytes(t, "s1 without its head", d.Read("s1"), first)
	wantClass(t, d.Create(ctx, "h", disk.Source{UID: "h", Volume: "v-h", Bytes: 1}), errclass.Conflict)
}

func checkImage(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(5, oddSize)
	d.NewHead("h", "h", "", oddSize)
	d.Write("h", 0, data)
	seal := disk.Seal{UID: "i", Kind: disk.KindImage}
	wrong := disk.Seal{UID: "i", Kind: disk.KindImage, Checksum: Checksum(nil)}
	wantClass(t, d.Snapshot(ctx, "h", "ubuntu-22.04", wrong), errclass.Corrupt)
	d.must(d.Snapshot(ctx, "h", "ubuntu-22.04", seal))
	d.must(d.Delete(ctx, "h"))
	d.must(d.Snapshot(ctx, "h", "ubuntu-22.04", seal)) // again is success, also without its head
	wantClass(t, d.Snapshot(ctx, "h", "other", seal), errclass.NotFound)
	want := []disk.Object{{
		Name: "ubuntu-22.04", UID: "i", Kind: disk.KindImage, Bytes: oddSize, State: disk.StateReady,
		Checksum: Checksum(data),
	}}
	if diff := cmp.Diff(want, d.Objects()); diff != "" {
		t.Error(diff)
	}
	l, err := d.Open(ctx, "ubuntu-22.04")
	d.must(err)
	if f, err := d.openFile(l.Path(), os.O_RDWR); err == nil {
		_, err := f.WriteAt(data[1:2], 0)
		if err = errors.Join(err, f.Sync()); err == nil {
			t.Error("an image can be written")
		}
		_ = f.Close() // it may have what could not be written
	}
	d.must(l.Close())
}

// An image whose pieces are known is compared with their hashes.
func checkSealPieces(t *testing.T, d Disk) {
	ctx := t.Context()
	const size = 2*mib + 5
	data := Noise(14, size)
	clear(data[:mib])
	d.NewHead("h", "h", "", 2*size)
	d.Write("h", mib, data[mib:])
	var pieces []disk.PieceHash
	for piece := range slices.Chunk(data, disk.PieceBytes) {
		pieces = append(pieces, sha256.Sum256(piece))
	}
	seal := disk.Seal{UID: "i", Kind: disk.KindImage, Bytes: size, Checksum: Checksum(data), Pieces: pieces}
	for words, change := range map[string]func(*disk.Seal){
		"of a snapshot":  func(s *disk.Seal) { s.Kind, s.Bytes = disk.KindSnapshot, 0 },
		"of pieces with": func(s *disk.Seal) { s.Checksum = Checksum(data)[:64] },
		"hashes":         func(s *disk.Seal) { s.Pieces = pieces[1:] },
	} {
		wrong := seal
		change(&wrong)
		wantClass(t, d.Snapshot(ctx, "h", "i", wrong), errclass.Invalid, words)
	}
	last := len(pieces) - 1
	for _, i := range []int{0, last} {
		wrong := seal
		wrong.Pieces = slices.Clone(pieces)
		wrong.Pieces[i][5] ^= 1
		wantClass(t, d.Snapshot(ctx, "h", "i", wrong), errclass.Corrupt, fmt.Sprintf("MiB %d is not", i))
	}
	for range 2 {
		d.must(d.Snapshot(ctx, "h", "i", seal))
	}
	got, err := d.Pieces(ctx, "i")
	d.must(err)
	if o := d.Objects()[1]; !slices.Equal(got, pieces) || o.Checksum != seal.Checksum || o.Bytes != size {
		t.Errorf("%+v", o)
	}
	wantBytes(t, "i", d.Read("i"), data)
}

// An image may have fewer bytes than its head, and any number of them. A SHA-256 is as good as a SHA-512.
func checkPart(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(12, 3*mib)
	d.NewHead("h", "h", "", 1<<40)
	d.Write("h", 0, data)
	d.Write("h", 1<<40-4096, Noise(13, 4096))
	part := data[:oddSize]
	sum := sha256.Sum256(part)
	seal := disk.Seal{UID: "i", Kind: disk.KindImage, Bytes: oddSize, Checksum: hex.EncodeToString(sum[:])}
	for words, change := range map[string]func(*disk.Seal){
		"more than":   func(s *disk.Seal) { s.Bytes = 1<<40 + 1 },
		"-1 bytes":    func(s *disk.Seal) { s.Bytes = -1 },
		"a snapshot":  func(s *disk.Seal) { s.Kind = disk.KindSnapshot },
		"not SHA-256": func(s *disk.Seal) { s.Checksum = strings.Repeat("G", 64) },
	} {
		wrong := seal
		change(&wrong)
		wantClass(t, d.Snapshot(ctx, "h", "i", wrong), errclass.Invalid, strings.TrimPrefix(words, "not "))
	}
	wrong := seal
	wrong.Bytes++
	err := d.Snapshot(ctx, "h", "i", wrong)
	wantClass(t, err, errclass.Corrupt, seal.Checksum)
	var mismatch *disk.ChecksumError
	if !errors.As(err, &mismatch) || mismatch.Algorithm != "SHA-256" || mismatch.Wanted != seal.Checksum {
		t.Errorf("%v", err)
	}
	for range 2 {
		d.must(d.Snapshot(ctx, "h", "i", seal))
	}
	wantBytes(t, "part", d.Read("i"), part)
	if o := d.Find("i"); o.Bytes != oddSize || o.Checksum != Checksum(part) {
		t.Errorf("%+v", o)
	}
	wantClass(t, d.Snapshot(ctx, "h", "i", wrong), errclass.Conflict)
	all := seal
	all.Bytes, all.Checksum = 0, ""
	wantClass(t, d.Snapshot(ctx, "h", "i", all), errclass.Conflict) // 0 stands for all of the head
	other := seal
	other.Checksum = strings.Repeat("0", 64)
	wantClass(t, d.Snapshot(ctx, "h", "i", other), errclass.Corrupt)
	d.must(d.Delete(ctx, "h"))
	d.must(d.Snapshot(ctx, "h", "i", seal)) // also without its head
	d.NewHead("clone", "clone", "i", 2*mib)
	wantBytes(t, "grown clone", d.Read("clone"), append(bytes.Clone(part), make([]byte, 2*mib-oddSize)...))
}

func checkPieces(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(14, 2*mib+1)
	d.NewImage("i", "i", data)
	d.NewHead("h", "h", "i", 3*mib)
	pieces, err := d.Pieces(ctx, "i")
	d.must(err)
	var want []disk.PieceHash
	for part := range slices.Chunk(data, disk.PieceBytes) {
		want = append(want, sha256.Sum256(part))
	}
	if diff := cmp.Diff(want, pieces); diff != "" {
		t.Error(diff)
	}
	_, err = d.Pieces(ctx, "h")
	wantClass(t, err, errclass.Invalid, "no image")
	_, err = d.Pieces(ctx, "none")
	wantClass(t, err, errclass.NotFound)
}

func checkDamage(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(15, mib)
	d.NewImage("i", "i", data)
	d.NewHead("h", "h", "i", mib)
	wantClass(t, d.MarkDamaged(ctx, "none", "i", "a bit"), errclass.NotFound)
	wantClass(t, d.MarkDamaged(ctx, "i", "another", "a bit"), errclass.NotFound)
	wantClass(t, d.MarkDamaged(ctx, "h", "h", "a bit"), errclass.Invalid, "not an image")
	d.must(d.MarkDamaged(ctx, "i", "i", "a bit"))
	d.must(d.MarkDamaged(ctx, "i", "i", "another bit"))
	if o := d.Find("i"); o.State != disk.StateDamaged { // and it is so when the disk is opened again
		t.Errorf("%+v", o)
	}
	_, err := d.Open(ctx, "i")
	wantClass(t, err, errclass.Corrupt, "damaged")
	err = d.Create(ctx, "g", disk.Source{UID: "g", Volume: "v-g", From: "i", Bytes: mib})
	wantClass(t, err, errclass.Corrupt, "damaged")
	wantBytes(t, "clone", d.Read("h"), data)
}

func checkDelete(t *testing.T, d Disk) {
	ctx := t.Context()
	d.NewImage("base", "base", Noise(6, mib))
	d.NewHead("one", "one", "base", mib)
	d.NewHead("two", "two", "base", mib)
	wantClass(t, d.Delete(ctx, "base"), errclass.Conflict, `"one", "two"`)
	d.NewSnapshot("one", "s", "s")
	d.NewHead("three", "three", "s", mib)
	wantClass(t, d.Delete(ctx, "s"), errclass.Conflict, `"three"`)
	d.must(d.Delete(ctx, "one"))
	wantClass(t, d.Delete(ctx, "base"), errclass.Conflict, `"s", "two"`)
	for _, name := range []disk.Name{"three", "s", "two", "base"} {
		d.must(d.Delete(ctx, name))
		wantClass(t, d.Delete(ctx, name), errclass.NotFound)
	}
	if all := d.Objects(); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
	d.NewHead("one", "one", "", 1) // name and UID are free again
}

func checkLeases(t *testing.T, d Disk) {
	ctx := t.Context()
	d.NewHead("h", "h", "", mib)
	first, err := d.Open(ctx, "h")
	d.must(err)
	second, err := d.Open(ctx, "h")
	d.must(err)
	d.NewSnapshot("h", "s", "s")
	for i := range 2 { // a second Close ends no other lease
		if n, err := d.Users(ctx, "h"); n != 2-i || err != nil {
			t.Errorf("%d users, %v", n, err)
		}
		wantClass(t, d.Delete(ctx, "h"), errclass.Conflict, "in use")
		d.must(first.Close())
	}
	wantClass(t, d.Delete(ctx, "h"), errclass.Conflict, "in use")
	d.must(second.Close())
	for range d.Changed(ctx, "s", "") {
		wantClass(t, d.Delete(ctx, "s"), errclass.Conflict, "in use")
	}
	d.Write("h", 0, Noise(7, 4096))
	for _, err := range d.Changed(ctx, "h", "s") {
		d.must(err)
		wantClass(t, d.Delete(ctx, "s"), errclass.Conflict, "in use")
		break // ends the use
	}
	d.must(d.Delete(ctx, "s"))
	d.must(d.Delete(ctx, "h"))
}

func checkChanged(t *testing.T, d Disk) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	now := Noise(8, oddSize)
	clear(now[200_000:500_000]) // zeroes that are written
	d.NewImage("base", "base", now)
	d.NewHead("h", "h", "base", 2*mib)
	now = append(now, make([]byte, 2*mib-oddSize)...)
	older := map[disk.Name][]byte{"base": now[:oddSize], "": nil}
	if set := wantCovered(t, d, "h", "base", now, older["base"]); set.Bytes() > mib {
		t.Errorf("%d bytes changed in a new clone", set.Bytes())
	}
	for i := range 4 {
		for range 1 + random.IntN(20) {
			offset := random.Int64N(2*mib - 9000)
			data := Noise(byte(random.Uint32()), random.Int64N(9000))
			if random.IntN(2) == 0 { // which a file system may compress
				data = bytes.Repeat([]byte{byte(random.Uint32())}, len(data))
			}
			now = bytes.Clone(now)
			copy(now[offset:], data)
			d.use("h", os.O_RDWR, func(f File) error {
				_, err := f.WriteAt(data, offset) // Changed makes the file system decide where it goes
				return err
			})
		}
		name := disk.Name(fmt.Sprint("s", i))
		for since, content := range older {
			wantCovered(t, d, "h", since, now, content)
		}
		d.NewSnapshot("h", name, disk.UID(name))
		for since, content := range older {
			wantCovered(t, d, name, since, now, content)
		}
		older[name] = now
	}
	d.NewImage("small", "small", Noise(11, 1000)) // which a file system may keep beside its metadata
	d.NewHead("small head", "small-head", "small", 1000)
	d.Write("small head", 10, []byte("changed"))
	wantCovered(t, d, "small head", "small", d.Read("small head"), Noise(11, 1000))
	// Back in time, and to a smaller object.
	wantCovered(t, d, "s0", "s3", older["s0"], older["s3"])
	wantCovered(t, d, "base", "s3", older["base"], older["s3"])
}

func checkUsage(t *testing.T, d Disk) {
	before, err := d.Usage(t.Context())
	d.must(err)
	d.NewHead("h", "h", "", 1<<40)
	after, err := d.Usage(t.Context())
	d.must(err)
	if before.Provisioned != 0 || after.Provisioned != 1<<40 || after.Available <= 0 || after.Capacity < after.Available ||
		before.Available-after.Available > 16*mib {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func checkEndedContext(t *testing.T, d Disk) {
	d.NewHead("h", "h", "", mib)
	d.NewImage("i", "i", Noise(9, mib))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, listErr := d.List(ctx)
	_, openErr := d.Open(ctx, "h")
	_, usageErr := d.Usage(ctx)
	var changedErr error
	for _, err := range d.Changed(ctx, "i", "") {
		changedErr = err
	}
	for i, err := range []error{
		listErr, openErr, usageErr, changedErr, d.Delete(ctx, "h"),
		d.Create(ctx, "x", disk.Source{UID: "x", Volume: "v", Bytes: 1}),
		d.Snapshot(ctx, "h", "x", disk.Seal{UID: "x", Kind: disk.KindSnapshot}),
	} {
		if err == nil || ctx.Err() == nil {
			t.Errorf("call %d succeeded", i)
		}
	}
	if n := len(d.Objects()); n != 2 {
		t.Errorf("%d objects", n)
	}
}

func checkConcurrency(t *testing.T, d Disk) {
	data := Noise(10, mib)
	d.NewImage("base", "base", data)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			ctx, name := t.Context(), disk.Name(fmt.Sprint("h", i))
			from := disk.Source{UID: disk.UID(name), Volume: "same", From: "base", Bytes: mib}
			err := d.Create(ctx, name, from)
			if err == nil {
				err = d.Snapshot(ctx, name, "s-"+name, disk.Seal{UID: "s-" + disk.UID(name), Kind: disk.KindSnapshot})
			}
			if err == nil && i%2 == 0 {
				err = d.Delete(ctx, name)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := len(d.Objects()); n != 1+8+4 {
		t.Errorf("%d objects", n)
	}
	for i := range 8 {
		wantBytes(t, "snapshot", d.Read(disk.Name(fmt.Sprint("s-h", i))), data)
	}
}

// checkExclusive checks that nobody uses a head whose data is taken exclusively. An image that is there needs no head.
func checkExclusive(t *testing.T, d Disk) {
	ctx := t.Context()
	d.NewHead("h", "h", "", oddSize)
	d.Write("h", 0, Noise(8, oddSize))
	seal := disk.Seal{UID: "i", Kind: disk.KindImage, Exclusive: true}
	lease, err := d.Open(ctx, "h")
	d.must(err)
	wantClass(t, d.Snapshot(ctx, "h", "i", seal), errclass.Conflict, "in use")
	if all := d.Objects(); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
	d.must(lease.Close())
	d.must(d.Snapshot(ctx, "h", "i", seal))
	lease, err = d.Open(ctx, "h")
	d.must(err)
	d.must(d.Snapshot(ctx, "h", "i", seal))
	d.must(lease.Close())
	wantBytes(t, "image", d.Read("i"), Noise(8, oddSize))
}
