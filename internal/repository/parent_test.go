package repository

import (
	"testing"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
)

func TestPlan_readsEverythingInDoubtAboutTheParent(t *testing.T) {
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
		doubt  FullReason
		want   FullReason
		block  int64
	}{
		"follows":             {source(as), parent(same), "", "", mib},
		"grown":               {source(func(d *DiskSource) { d.Bytes *= 2 }), parent(same), "", "", mib},
		"asked":               {source(as), parent(same), FullAsked, FullAsked, 256 * kib},
		"no parent":           {source(as), nil, "", FullNoParent, 256 * kib},
		"a new disk":          {source(func(d *DiskSource) { d.Name = "data" }), parent(same), "", FullNoParent, 256 * kib},
		"another disk":        {source(func(d *DiskSource) { d.Identity = "b" }), parent(same), "", FullOtherIdentity, mib},
		"changes unknown":     {source(func(d *DiskSource) { d.Changes = nil }), parent(same), "", FullNoChanges, mib},
		"changes of another":  {source(func(d *DiskSource) { d.Changes.Since = "c0" }), parent(same), "", FullOtherBase, mib},
		"nameless points":     {source(func(d *DiskSource) { d.Changes.Since = "" }), parent(func(d *Disk) { d.Change = "" }), "", FullOtherBase, mib},
		"a damaged history":   {source(as), parent(same), FullParentDamaged, FullParentDamaged, mib},
		"nothing but damage":  {source(as), nil, FullParentDamaged, FullParentDamaged, 256 * kib},
		"parent without data": {source(as), parent(func(d *Disk) { d.Object = object.EmptyID }), "", FullParentDamaged, mib},
	} {
		plan, err := planDisk(c.disk, c.parent, c.doubt, 256*kib)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if plan.full != c.want || plan.isIncremental() != (c.want == "") || plan.geometry.BlockBytes != c.block || plan.geometry.Bytes != c.disk.Bytes {
			t.Errorf("%s: %+v, want %q and blocks of %d", name, plan, c.want, c.block)
		}
	}
}
