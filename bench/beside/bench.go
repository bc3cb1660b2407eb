package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/lab"
)

const (
	namespace = "bench-beside"
	vmName    = "machine" // in test/kubevirt/machine.yaml, as the serial numbers of its disks
	mib       = int64(1) << 20

	dataDisk = "data"
	// dataBytes at the beginning of the data disk are 16 MiB of random bytes, again and again. extents of extentBytes are
	// written behind them.
	dataBytes   = 256 * mib
	extents     = 600
	extentBytes = 64 << 10

	stepTimeout   = 5 * time.Minute
	deleteTimeout = 3 * time.Minute
)

// bench measures one runtime.
type bench struct {
	*lab.Lab
	*options

	figures map[string]report.Sample
	facts   map[string]any
}

func openBench(ctx context.Context, o *options) (*bench, error) {
	l, err := lab.OpenFresh(ctx, o.kubeconfig, o.build, namespace, stepTimeout)
	if err != nil {
		return nil, err
	}
	return &bench{Lab: l, options: o, figures: map[string]report.Sample{}, facts: map[string]any{}}, nil
}

// removeAll removes everything that the run has made.
func (b *bench) removeAll(ctx context.Context) error {
	return errors.Join(b.DeleteUploads(ctx, deleteTimeout), b.DeleteNamespace(ctx, stepTimeout))
}

func (b *bench) measureAll(ctx context.Context) error {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"boot", b.bootMachine}, {"push", b.measurePush}, {"pull", b.measurePull}, {"whole machine", b.measureWhole},
	} {
		began := time.Now()
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		load, err := report.ReadLoad()
		if err != nil {
			return err
		}
		b.facts["load"] = load
		b.logLine("%s took %.0f s; load %s", step.name, time.Since(began).Seconds(), load)
	}
	return nil
}

func (b *bench) addFigure(id string, value float64) {
	b.logLine("%s: %.2f", id, value)
	b.figures[id] = append(b.figures[id], value)
}

func (b *bench) logLine(format string, args ...any) {
	fmt.Fprintf(os.Stderr, b.runtime+": "+format+"\n", args...)
}

// claimSizes are those of the machine's claims.
var claimSizes = map[string]string{"machine-root": "512Mi", "machine-data": "2Gi"}

// bootMachine makes the machine of the tests beside KubeVirt, with larger disks, and fills the data disk.
func (b *bench) bootMachine(ctx context.Context) error {
	manifest := filepath.Join(b.build, "../test/kubevirt/machine.yaml")
	err := b.CreateKubeVirtMachine(ctx, manifest, func(o *unstructured.Unstructured) error {
		if labels := o.GetLabels(); labels != nil {
			labels[lab.TrackingLabel] = "true" // Varve's runtime is configured for it.
			o.SetLabels(labels)
		}
		size, ok := claimSizes[o.GetName()]
		if !ok {
			return nil
		}
		return unstructured.SetNestedField(o.Object, size, "spec", "resources", "requests", "storage")
	})
	if err != nil {
		return err
	}
	if _, err := b.WaitAgent(ctx, vmName, stepTimeout); err != nil {
		return err
	}
	if err := b.WaitTracking(ctx, vmName, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute); err != nil {
		return err
	}
	// Random numbers cost an emulated processor more than writing them.
	return b.runInGuest(ctx, fmt.Sprintf(`dd if=/dev/urandom of=/tmp/random bs=1M count=16
		i=0; while [ $i -lt %d ]; do dd if=/tmp/random of=$data bs=1M seek=$i conv=notrunc; i=$((i+16)); done`,
		dataBytes/mib))
}

// runInGuest runs a script in the guest, after which its disks hold what it wrote. The variable data is the device of
// the data disk.
func (b *bench) runInGuest(ctx context.Context, script string) error {
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, `for d in /sys/block/vd*; do [ "$(cat $d/serial)" != DATA ] || data=/dev/${d##*/}; done
`+script+"\nsync")
	return err
}
