package spdk

import (
	"crypto/sha256"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/test/verdict"
)

var testHostID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func openSession(t *testing.T, dial dialer, socket, name string) *Disk {
	t.Helper()
	o := Options{Socket: socket, Store: "session-" + name, DataAddress: dataAddress}
	d, err := openDisk(t.Context(), o, dial, testHostID)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What a real target answered is in testdata: an image, a clone of it, a snapshot of that, and their ends.
func TestDisk_replaysTheRecordedSession(t *testing.T) { //nolint:paralleltest // one address
	dial, socket := startSession(t, "disk")
	opened := openSession(t, dial, socket, "disk")
	d := disktest.Disk{Disk: dataDisk{Disk: opened}, TB: t, OpenFile: openDataFile}
	ctx := t.Context()
	const size = 6001
	data := disktest.Noise(1, size)

	d.NewHead("making", "m-1", "", size)
	d.Write("making", 0, data)
	wrong := disk.Seal{UID: "i-1", Kind: disk.KindImage, Checksum: disktest.Checksum(data[1:])}
	wantError(t, opened.Snapshot(ctx, "making", "ubuntu-22.04", wrong), errclass.Corrupt)
	right := wrong
	right.Checksum = disktest.Checksum(data)
	must(t, opened.Snapshot(ctx, "making", "ubuntu-22.04", right))
	must(t, opened.Delete(ctx, "making"))
	must(t, opened.Snapshot(ctx, "making", "ubuntu-22.04", right)) // again is success
	pieces, err := opened.Pieces(ctx, "ubuntu-22.04")
	must(t, err)
	if !slices.Equal(pieces, []disk.PieceHash{sha256.Sum256(data)}) {
		t.Errorf("the hashes are %x", pieces)
	}

	d.NewHead("volume", "h-1", "ubuntu-22.04", 3<<20)
	d.Write("volume", 2<<20, data[:4096])
	wantError(t, opened.Create(ctx, "volume", disk.Source{UID: "h-2", Volume: "v", Bytes: 1}), errclass.Conflict)
	missing := disk.Source{UID: "h-2", Volume: "v", From: "none", Bytes: 1}
	wantError(t, opened.Create(ctx, "other", missing), errclass.NotFound)
	must(t, opened.Snapshot(ctx, "volume", "snapshot", disk.Seal{UID: "s-1", Kind: disk.KindSnapshot}))
	d.Write("volume", 1<<20, data[:4096])
	must(t, opened.Grow(ctx, "volume", 4<<20))
	for since, want := range map[disk.Name][]extent.Extent{"snapshot": {{Offset: 1 << 20, Length: 1 << 20}}} {
		var found []extent.Extent
		for e, err := range opened.Changed(ctx, "volume", since) {
			must(t, err)
			found = append(found, e)
		}
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("changed since %s (-want +found):\n%s", since, diff)
		}
	}
	_, err = opened.Open(ctx, "volume")
	wantError(t, err, ErrUnsupported)
	wantError(t, opened.Delete(ctx, "ubuntu-22.04"), errclass.Conflict)
	must(t, opened.MarkDamaged(ctx, "ubuntu-22.04", "i-1", "a bit"))
	wantError(t, opened.Create(ctx, "other", disk.Source{UID: "h-2", Volume: "v", From: "ubuntu-22.04", Bytes: size}),
		errclass.Corrupt)
	wantError(t, opened.Repair(ctx, "ubuntu-22.04", "i-1", nil), ErrUnsupported)

	opened = openSession(t, dial, socket, "disk") // which knows only what the store has
	d.Disk = dataDisk{Disk: opened}
	want := []disk.Object{
		{
			Name: "snapshot", UID: "s-1", Volume: "v-h-1", Parent: "i-1", Kind: disk.KindSnapshot, Bytes: 3 << 20,
			State: disk.StateReady,
		},
		{
			Name: "ubuntu-22.04", UID: "i-1", Kind: disk.KindImage, Bytes: size, State: disk.StateDamaged,
			Checksum: disktest.Checksum(data),
		},
		{
			Name: "volume", UID: "h-1", Volume: "v-h-1", Parent: "s-1", Kind: disk.KindHead, Bytes: 4 << 20,
			State: disk.StateWritable,
		},
	}
	if diff := cmp.Diff(want, d.Objects()); diff != "" {
		t.Errorf("objects (-want +found):\n%s", diff)
	}
	usage, err := opened.Usage(ctx)
	must(t, err)
	// One cluster of the image, one of the snapshot, one of the head, and one with the hashes.
	if usage.Provisioned != 4<<20 || usage.Capacity-usage.Available != 4<<20 {
		t.Errorf("usage %+v", usage)
	}
	for _, name := range []disk.Name{"snapshot", "volume", "ubuntu-22.04"} {
		must(t, opened.Delete(ctx, name))
	}
	if all := d.Objects(); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
	usage, err = opened.Usage(ctx)
	must(t, err)
	if usage.Capacity != usage.Available {
		t.Errorf("usage of an empty disk %+v", usage)
	}
}

// The codes and the texts by which a target refuses something are those that were recorded.
func TestClient_replaysTheRecordedErrors(t *testing.T) { //nolint:paralleltest // a real target has one store of a name
	dial, socket := startSession(t, "errors")
	c := client{dial: dial, address: socket}
	ctx := t.Context()
	s, err := c.readStore(ctx, "session-errors")
	must(t, err)
	must(t, c.createVolume(ctx, s, "h", 1))
	must(t, c.snapshotVolume(ctx, s, "h", "s", map[string]string{attribute: "x"}))
	must(t, c.cloneVolume(ctx, s, "s", "c"))
	_, noStore := c.readStore(ctx, "none")
	value, noAttribute := c.readAttribute(ctx, s, "s", "none")
	if value != "" || noAttribute != nil {
		t.Errorf("an attribute that is not there: %q, %v", value, noAttribute)
	}
	none := s
	none.Name = "none"
	_, noVolume := c.readAllocated(ctx, s, "none")
	for what, x := range map[string]struct {
		code int
		err  error
		want error
	}{
		"no store":           {-19, noStore, errclass.Transient},
		"no volume":          {-19, noVolume, errclass.Transient},
		"create again":       {-17, c.createVolume(ctx, s, "h", 1), errclass.Conflict},
		"create in no store": {-19, c.createVolume(ctx, none, "h", 1), errclass.Transient},
		"clone again":        {-32602, c.cloneVolume(ctx, s, "s", "c"), errclass.Conflict},
		"two clones":         {-32603, c.deleteVolume(ctx, s, "s"), errclass.Conflict},
		"change a snapshot":  {-32602, c.setAttribute(ctx, s, "s", "y"), errclass.Conflict},
		"decouple no clone":  {-32602, c.decoupleVolume(ctx, s, "s"), errclass.Invalid},
		"no such call":       {-32601, c.call(ctx, "varve_none", nil, nil), ErrUnsupported},
		"no parameters":      {-32603, c.call(ctx, "bdev_lvol_delete", map[string]string{"x": "y"}, nil), nil},
		"more than the store": {-32602, c.call(ctx, "bdev_lvol_create", map[string]any{
			"lvs_name": s.Name, "lvol_name": "thick", "size_in_mib": 1 << 20,
		}, nil), errclass.Exhausted},
	} {
		var answered *CallError
		if !errors.As(x.err, &answered) || answered.Code != x.code || (x.want != nil && !errors.Is(x.err, x.want)) ||
			(x.want == nil && errclass.Of(x.err) != errclass.None) {
			t.Errorf("%s: %v, want code %d and class %v", what, x.err, x.code, x.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, not %v", err, want)
	}
}

// wantNothingElse checks that the store has no volumes but those that objects need.
func wantNothingElse(t *testing.T, d *Disk) {
	t.Helper()
	v, err := d.lockView(t.Context())
	must(t, err)
	defer d.unlock()
	for name := range v.volumes {
		r, uid, ok := parseVolumeName(name)
		o, exists := v.objects[uid]
		needed := exists && (o.volume == name || (r == roleSeal && o.Sealed))
		if !ok || (!needed && (r != roleBase || len(v.volumes[name].Driver.Volume.Clones) < 2)) {
			t.Errorf("the volume %s is left", name)
		}
	}
}

// A snapshot can be deleted although the target refuses that, because two images still have its clusters.
func TestDisk_replaysTheDeletionOfWhatImagesShare(t *testing.T) { //nolint:paralleltest // one address
	dial, socket := startSession(t, "shared")
	opened := openSession(t, dial, socket, "shared")
	d := disktest.Disk{Disk: dataDisk{Disk: opened}, TB: t, OpenFile: openDataFile}
	ctx := t.Context()
	data := disktest.Noise(1, 4096)
	d.NewHead("h", "h", "", 4096)
	d.Write("h", 0, data)
	d.NewSnapshot("h", "s", "s")
	d.NewHead("c", "c", "s", 4096)
	for _, head := range []disk.Name{"h", "c"} {
		must(t, opened.Snapshot(ctx, head, "image of "+head, disk.Seal{UID: "i-" + disk.UID(head), Kind: disk.KindImage}))
		must(t, opened.Delete(ctx, head))
	}
	must(t, opened.Delete(ctx, "s"))
	wantError(t, opened.Delete(ctx, "s"), errclass.NotFound)
	wantError(t, opened.Create(ctx, "s", disk.Source{UID: "s", Volume: "v", Bytes: 1}), errclass.Conflict)

	opened = openSession(t, dial, socket, "shared")
	d.Disk = dataDisk{Disk: opened}
	for _, head := range []disk.Name{"h", "c"} {
		if !cmp.Equal(data, d.Read("image of "+head)) {
			verdict.Errorf(t, "the image of %s has other bytes", head)
		}
	}
	must(t, opened.Delete(ctx, "image of h"))
	if !cmp.Equal(data, d.Read("image of c")) {
		verdict.Errorf(t, "the image of c has other bytes")
	}
	must(t, opened.Create(ctx, "s", disk.Source{UID: "s", Volume: "v", Bytes: 1}))
	must(t, opened.Delete(ctx, "s"))
	wantNothingElse(t, opened)
}

// Open removes what belongs to no object, and leaves alone what it does not know.
func TestOpen_replaysTheRecoveryOfAStore(t *testing.T) { //nolint:paralleltest // one address
	dial, socket := startSession(t, "recovery")
	c := client{dial: dial, address: socket}
	ctx := t.Context()
	s, err := c.readStore(ctx, "session-recovery")
	must(t, err)
	kept := map[string]string{
		"other": "", "varve-z-1": "", "varve-h-newer": `{"format":2}`, "varve-h-broken": `{`,
		"varve-h-another": `{"format":1,"name":"a","uid":"b","kind":"head","volume":"v","bytes":1}`,
	}
	for _, name := range []string{
		"other", "varve-h-another", "varve-h-broken", "varve-h-newer", "varve-h-unfinished", "varve-x-alone", "varve-z-1",
	} {
		must(t, c.createVolume(ctx, s, name, 1))
		if value := kept[name]; value != "" {
			must(t, c.setAttribute(ctx, s, name, value))
		}
	}
	// What a process that was killed had served.
	must(t, c.prepareService(ctx))
	nqn := servicePrefix + s.UUID + ":00000000-1"
	_, err = c.serveVolume(ctx, nqn, "nqn.2014-08.org.nvmexpress:host", s.Name+"/other", "127.0.0.1", "44210")
	must(t, err)
	d := openSession(t, dial, socket, "recovery")
	v, err := d.lockView(ctx)
	must(t, err)
	d.unlock()
	var left, want []string
	for name := range v.volumes {
		left = append(left, name)
	}
	for name := range kept {
		want = append(want, name)
	}
	slices.Sort(left)
	slices.Sort(want)
	if diff := cmp.Diff(want, left); diff != "" || len(v.objects) > 0 {
		t.Errorf("objects %v, volumes (-want +left):\n%s", v.objects, diff)
	}
	for _, uid := range []disk.UID{"newer", "broken", "another"} {
		wantError(t, d.Create(ctx, "x", disk.Source{UID: uid, Volume: "v", Bytes: 1}), errclass.Conflict)
	}
	if got := d.Recovered(); len(got) != 3 {
		t.Errorf("recovered %q", got)
	}
	services, err := c.readServices(ctx)
	must(t, err)
	if diff := cmp.Diff([]string{"nqn.2014-08.org.nvmexpress.discovery"}, services); diff != "" {
		t.Errorf("services (-want +left):\n%s", diff)
	}
}

// An image that is a part of its head hides the rest, although the clusters are there: a clone of it that is larger
// differs from a snapshot of the head where the snapshot has them.
func TestChanged_replaysAPartOfAHead(t *testing.T) { //nolint:paralleltest // one address
	dial, socket := startSession(t, "part")
	opened := openSession(t, dial, socket, "part")
	d := disktest.Disk{Disk: dataDisk{Disk: opened}, TB: t, OpenFile: openDataFile}
	ctx := t.Context()
	d.NewHead("h", "h", "", 4<<20)
	for _, cluster := range []int64{0, 2} {
		d.Write("h", cluster<<20, disktest.Noise(1, 4096))
	}
	must(t, opened.Snapshot(ctx, "h", "part", disk.Seal{UID: "i", Kind: disk.KindImage, Bytes: 4096}))
	d.NewSnapshot("h", "s", "s")
	d.NewHead("c", "c", "part", 4<<20)
	for _, x := range []struct {
		since disk.Name
		want  []extent.Extent
	}{
		{"part", nil}, {"s", []extent.Extent{{Offset: 2 << 20, Length: 1 << 20}}},
	} {
		var found []extent.Extent
		for e, err := range opened.Changed(ctx, "c", x.since) {
			must(t, err)
			found = append(found, e)
		}
		if diff := cmp.Diff(x.want, found); diff != "" {
			t.Errorf("changed since %s (-want +found):\n%s", x.since, diff)
		}
	}
}

// A store that was replaced by another one of the same name does not have the objects, and they are not deleted.
func TestDisk_replaysAStoreThatIsReplaced(t *testing.T) { //nolint:paralleltest // one address
	const name = "session-replaced"
	dial, socket := startSession(t, "replaced")
	d := openSession(t, dial, socket, "replaced")
	ctx := t.Context()
	must(t, d.Create(ctx, "h", disk.Source{UID: "h", Volume: "v", Bytes: 1}))
	must(t, d.client.call(ctx, "bdev_lvol_delete_lvstore", map[string]string{"lvs_name": name}, nil))
	_, err := d.List(ctx)
	wantError(t, err, errclass.Transient)
	must(t, d.client.call(ctx, "bdev_lvol_create_lvstore", map[string]any{
		"bdev_name": name, "lvs_name": name, "cluster_sz": 1 << 20,
	}, nil))
	_, err = d.List(ctx)
	wantError(t, err, errclass.Transient)
	wantError(t, d.Delete(ctx, "h"), errclass.Transient)
}
