package repository

import (
	"testing"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
)

func TestAnyDoubtAboutTheParentMeansAFullRead(t *testing.T) {
	t.Parallel()
	id, err := object.ParseID("Ix00112233445566778899aabbccddeeff")
	if err != nil {
		t.Fatal(err)
	}
	parent := func(change func(*Disk)) *RestorePoint {
		d := Disk{Name: "root", Bytes: 10 * mib, BlockBytes: mib, Object: id, Identity: "a", Change: "c1"}
		change(&d)
		return &RestorePoint{ID: "p", Disks: []Disk{d}}
	}
	same := func(*Disk) {}
	source := func(change func(*DiskSource)) *DiskSource {
		d := DiskSource{Name: "root", Bytes: 10 * mib, Identity: "a", Change: "c2", Changes: &Changes{Since: "c1", Set: extent.Set{}}}
		change(&d)
		return &d
	}
	as := func(*DiskSource) {}
	for name, c := range map[string]struct {
		disk   *DiskSource
		parent *RestorePoint
		asked  bool
		want   FullReason
		block  int64
	}{
		"follows":             {source(as), parent(same), false, "", mib},
		"grown":               {source(func(d *DiskSource) { d.Bytes *= 2 }), parent(same), false, "", mib},
		"asked":               {source(as), parent(same), true, FullAsked, 256 * kib},
		"no parent":           {source(as), nil, false, FullNoParent, 256 * kib},
		"a new disk":          {source(func(d *DiskSource) { d.Name = "data" }), parent(same), false, FullNoParent, 256 * kib},
		"another disk":        {source(func(d *DiskSource) { d.Identity = "b" }), parent(same), false, FullOtherIdentity, mib},
		"changes unknown":     {source(func(d *DiskSource) { d.Changes = nil }), parent(same), false, FullNoChanges, mib},
		"changes of another":  {source(func(d *DiskSource) { d.Changes.Since = "c0" }), parent(same), false, FullOtherBase, mib},
		"nameless points":     {source(func(d *DiskSource) { d.Changes.Since = "" }), parent(func(d *Disk) { d.Change = "" }), false, FullOtherBase, mib},
		"parent without data": {source(as), parent(func(d *Disk) { d.Object = object.EmptyID }), false, FullParentDamaged, mib},
	} {
		plan, err := planDisk(c.disk, c.parent, c.asked, 256*kib)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if plan.full != c.want || plan.incremental() != (c.want == "") || plan.geometry.block != c.block || plan.geometry.size != c.disk.Bytes {
			t.Errorf("%s: %+v, want %q and blocks of %d", name, plan, c.want, c.block)
		}
	}
}
