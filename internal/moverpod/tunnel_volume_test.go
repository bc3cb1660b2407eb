package moverpod

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/disksource"
	"github.com/varvebackup/varve/test/verdict"
)

// openFarEnd connects a machine to the far end of a tunnel, with change made to the launcher's configuration, and
// returns what opens the machine's volume there.
func openFarEnd(t *testing.T, m *machine, change func(*tunnel.Config)) func() *tunnelVolume {
	t.Helper()
	p := newSite(t).newTunnelPod(t, m, newMachineUpload("1", ""))
	r := &run{Options: p.Options}
	far, err := r.startFarEnd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := far.close(); err != nil {
			t.Error(err)
		}
	})
	p.connect(t, m, change)
	return func() *tunnelVolume {
		return &tunnelVolume{far: far.server, name: "root", patience: time.Minute, readable: context.WithCancel, log: p.Log}
	}
}

// The tunnel is cut while the disk is read.
func TestTunnelVolume_isADiskSource(t *testing.T) {
	t.Parallel()
	for name, incremental := range map[string]bool{"full": false, "incremental": true} {
		m := &machine{volume: &readVolume{Volume: exporttest.NewVolume("root", 12*mib+512, incremental, 9)}}
		want := disksource.Disk{Content: m.volume.Content, Exact: true}
		if incremental {
			want.Changed = &extent.Set{}
			for i, dirty := range m.volume.Dirty {
				if dirty {
					want.Changed.Append(extent.Extent{Offset: int64(i) * exporttest.BlockBytes, Length: min(exporttest.BlockBytes, 12*mib+512-int64(i)*exporttest.BlockBytes)})
				}
			}
		}
		var dials atomic.Int64
		open := openFarEnd(t, m, func(c *tunnel.Config) {
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				nc, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil || dials.Add(1) > 8 {
					return nc, err
				}
				return &cutConn{Conn: nc, left: 5 * mib}, nil
			}
		})
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disksource.Run(t, want, func(t *testing.T) disksource.Source {
				t.Helper()
				d, err := open().openDisk(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				return d
			})
			t.Cleanup(func() {
				if dials.Load() < 3 {
					t.Errorf("the launcher has dialed %d times: nothing was cut", dials.Load())
				}
			})
		})
	}
}

// A launcher names more regions than a mover pod may keep. None of them is lost.
func TestTunnelVolume_manyRegionsAreBounded(t *testing.T) {
	t.Parallel()
	const most, many, stride = 1 << 20, 5 << 18, 256 << 10
	m := &machine{volume: &readVolume{Volume: &exporttest.Volume{Description: export.Info{Name: "root", Bytes: many * stride, Incremental: true, PointInTime: "now"}}}}
	m.volume.regions = func(e extent.Extent, report func(export.Region) bool) {
		for e.Length > 0 {
			part, kind := extent.Extent{Offset: e.Offset, Length: min(stride-e.Offset%stride, e.Length)}, export.Clean
			if e.Offset%stride == 0 {
				part.Length, kind = 1, export.Data
			}
			if !report(export.Region{Extent: part, Kind: kind}) {
				return
			}
			e = extent.Extent{Offset: part.End(), Length: e.End() - part.End()}
		}
	}
	d, err := openFarEnd(t, m, nil)().openDisk(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	changed, _ := d.Changes(t.Context())
	data, _ := d.Data(t.Context())
	if changed.Len() > most || data.Len() > most {
		t.Errorf("%d and %d extents", data.Len(), changed.Len())
	}
	random := rand.New(rand.NewPCG(2, 2))
	for range 10000 {
		if e := (extent.Extent{Offset: random.Int64N(many) * stride, Length: 1}); !changed.Contains(e) {
			verdict.Fatalf(t, "%v has changed, and is lost", e)
		}
	}
}

// An error of who reads is that error at once, and no reason to read again.
func TestTunnelVolume_returnsTheSinksError(t *testing.T) {
	t.Parallel()
	m := newMachine(diskBytes, 11)
	v := openFarEnd(t, m, nil)()
	if _, err := v.openDisk(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	full, calls := errclass.Errorf(errclass.Transient, "full"), 0
	err := v.Read(t.Context(), extent.Extent{Length: diskBytes}, export.Everything, func(export.Chunk) error { calls++; return full })
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("%d calls: %v", calls, err)
	}
}
