package disktest

import (
	"bytes"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// checkGrow: a head grows by zeroes, what was made of it before does not, and nothing shrinks.
func checkGrow(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(1, oddSize)
	d.NewHead("h", "h", "", oddSize)
	d.Write("h", 0, data)
	d.NewSnapshot("h", "s1", "s1")
	for range 2 { // again is success
		d.must(d.Grow(ctx, "h", 3*mib))
	}
	wantClass(t, d.Grow(ctx, "h", 3*mib-1), errclass.Invalid, "cannot shrink")
	wantClass(t, d.Grow(ctx, "s1", 3*mib), errclass.Invalid, "is no head")
	wantClass(t, d.Grow(ctx, "none", 3*mib), errclass.NotFound, `"none"`)
	grown := append(bytes.Clone(data), make([]byte, 3*mib-oddSize)...)
	wantBytes(t, "grown head", d.Read("h"), grown)
	wantBytes(t, "snapshot of before", d.Read("s1"), data)
	copy(grown[2*mib:], data[:4096])
	d.Write("h", 2*mib, data[:4096])
	wantCovered(t, d, "h", "s1", grown, data)
	d.NewSnapshot("h", "s2", "s2")
	wantBytes(t, "snapshot of after", d.Read("s2"), grown)
	d.must(d.Create(ctx, "c", disk.Source{UID: "c", Volume: "v2", From: "s1", Bytes: 4 * mib}))
	d.must(d.Grow(ctx, "c", 5*mib))
	wantBytes(t, "grown clone", d.Read("c"), append(bytes.Clone(data), make([]byte, 5*mib-oddSize)...))
	if got := d.Find("h"); got.Bytes != 3*mib || got.Parent != "s2" {
		t.Errorf("the head is %+v", got)
	}
}

// checkIndependent: what an independent head was made of can be deleted, and the head keeps its bytes.
func checkIndependent(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(1, oddSize)
	d.NewHead("h", "h", "", oddSize)
	d.Write("h", 0, data)
	d.NewSnapshot("h", "s", "s")
	from := disk.Source{UID: "c", Volume: "v2", From: "s", Bytes: oddSize, Independent: true}
	for range 2 { // again is success
		d.must(d.Create(ctx, "c", from))
	}
	if got := d.Find("c"); got.Parent != "" {
		t.Errorf("the clone is %+v", got)
	}
	for _, name := range []disk.Name{"s", "h"} {
		d.must(d.Delete(ctx, name))
	}
	wantBytes(t, "clone", d.Read("c"), data)
}
