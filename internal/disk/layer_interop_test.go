//go:build nbd_interop

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// A layer hides what is below it exactly where it was written, also with zeroes.
func TestLayer_hidesOnlyWhatWasWritten(t *testing.T) {
	t.Parallel()
	const size = 3*mib + 1536
	for _, granule := range []int64{512, 4 * kib, 64 * kib} {
		t.Run(fmt.Sprint(granule), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			want := noise(size, 1)
			base, layer, raw := filepath.Join(dir, "base.qcow2"), filepath.Join(dir, "layer.qcow2"), filepath.Join(dir, "raw")
			target, err := OpenTarget(t.Context(), base, size, TargetOptions{Format: QCOW2})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(target.WriteAt(t.Context(), want, 0), target.Sync(t.Context()), target.Close()); err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(uint64(granule), 3))
			var changes []extent.Extent
			var bounds []int64
			for offset := int64(0); offset < size; offset += granule {
				if e := (extent.Extent{Offset: offset, Length: min(granule, size-offset)}); random.IntN(4) == 0 {
					changes = append(changes, e)
					if bounds = append(bounds, e.Offset); e.End() < size {
						bounds = append(bounds, e.End())
					}
				}
			}
			if got := LayerClusterBytes(bounds...); got != granule {
				t.Fatalf("clusters of %d bytes for granules of %d", got, granule)
			}
			o := TargetOptions{Format: QCOW2, Layer: &Layer{ClusterBytes: granule}}
			open := func() (Target, *Journal) {
				j := newTestJournal(t, JournalOptions{Token: "layer"})
				o.Journal = j
				target, err := OpenTarget(t.Context(), layer, size, o)
				if err != nil {
					t.Fatal(err)
				}
				return target, j
			}
			target, j := open()
			for i, e := range changes {
				if i == len(changes)/2 { // interrupted, after somebody had named the backing file already
					j.Finished(t.Context(), target, 0)
					if err := errors.Join(j.Save(t.Context(), target), target.Close(), SetBacking(t.Context(), layer, "base.qcow2", QCOW2)); err != nil {
						t.Fatal(err)
					}
					target, j = open()
				}
				part := want[e.Offset:e.End()]
				if random.IntN(2) == 0 {
					clear(part)
					err = target.Zero(t.Context(), e)
				} else {
					copy(part, noise(len(part), uint64(i)))
					err = target.WriteAt(t.Context(), part, e.Offset)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(target.Sync(t.Context()), target.Close(), SetBacking(t.Context(), layer, "base.qcow2", QCOW2), j.Remove()); err != nil {
				t.Fatal(err)
			}
			run(t, "qemu-img", "check", "-q", layer)
			run(t, "qemu-img", "convert", "-O", "raw", layer, raw)
			got, err := os.ReadFile(raw)
			if err != nil || !bytes.Equal(got[:size], want) {
				verdict.Errorf(t, "the chain has other bytes: %v", err)
			}
		})
	}
}

func TestLayerClusterBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bounds []int64
		want   int64
	}{{nil, 64 << 10}, {[]int64{0, 1 << 30}, 64 << 10}, {[]int64{0, 4096, 1 << 20}, 4096}, {[]int64{512}, 512}, {[]int64{256}, 0}, {[]int64{1}, 0}} {
		if got := LayerClusterBytes(c.bounds...); got != c.want {
			t.Errorf("%v: %d, want %d", c.bounds, got, c.want)
		}
	}
}

func TestLayer_isQCOW2(t *testing.T) {
	t.Parallel()
	for _, o := range []TargetOptions{{Format: Raw, Layer: &Layer{ClusterBytes: 4096}}, {Format: QCOW2, Layer: &Layer{}}, {Format: QCOW2, Layer: &Layer{ClusterBytes: 3000}}} {
		if _, err := OpenTarget(t.Context(), filepath.Join(t.TempDir(), "x"), mib, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	if err := SetBacking(t.Context(), "x", "nbd:host", QCOW2); err == nil {
		t.Error("a backing file with a protocol was accepted")
	}
}
