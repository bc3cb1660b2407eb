package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/gen"
)

const (
	pullTracker = "pull"
	token       = "a-token-of-the-benchmark"
	pieceBytes  = int64(1) << 20
)

// measurePull measures what the endpoints of a full and of an incremental backup give.
func (b *bench) measurePull(ctx context.Context) error {
	if err := b.Claim(ctx, "scratch", 2<<30, corev1.PersistentVolumeFilesystem); err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: gen.Meta(namespace, "token"), Data: map[string][]byte{podspec.TokenKey: []byte(token)},
	}
	for _, o := range []client.Object{secret, b.newTracker(pullTracker)} {
		if err := b.Create(ctx, o); err != nil {
			return fmt.Errorf("create what a pull backup needs: %w", err)
		}
	}
	if err := b.whilePulled(ctx, "pull-full", b.measureData); err != nil {
		return err
	}
	// Behind the data, an extent of 64 KiB in each 2.5 MiB.
	err := b.runInGuest(ctx, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do
		dd if=/tmp/random of=$data bs=64k count=1 seek=$((%d + i*40 + i*7%%30)) conv=notrunc 2>/dev/null; i=$((i+1)); done`,
		extents, dataBytes/extentBytes))
	if err != nil {
		return err
	}
	return b.whilePulled(ctx, "pull-incremental", b.measureScattered)
}

// pulled is the data disk in a pull backup.
type pulled struct {
	volume  endpoint.Volume
	options endpoint.Options
}

// whilePulled calls act while a pull backup serves, and deletes the backup, which moves the tracker.
func (b *bench) whilePulled(ctx context.Context, name string, act func(context.Context, *pulled) error) error {
	backup := b.newBackup(name, pullTracker, pullMode, "scratch")
	secret := "token"
	backup.Spec.TokenSecretRef = &secret
	began := time.Now()
	if err := b.Create(ctx, backup); err != nil {
		return fmt.Errorf("create pull backup %s: %w", name, err)
	}
	if err := b.waitCondition(ctx, backup, backupv1.ConditionExportReady); err != nil {
		return err
	}
	b.logLine("%s: create to ExportReady %.1f s", name, time.Since(began).Seconds())
	disk, err := b.findEndpoints(ctx, backup)
	if err == nil {
		err = act(ctx, disk)
	}
	if err := errors.Join(err, b.Delete(ctx, backup)); err != nil {
		return fmt.Errorf("pull backup %s: %w", name, err)
	}
	return b.WaitGone(ctx, backup, deleteTimeout)
}

// findEndpoints returns how to read the data disk from outside of the cluster, past its Service.
func (b *bench) findEndpoints(ctx context.Context, backup *backupv1.VirtualMachineBackup) (*pulled, error) {
	for i := range backup.Status.IncludedVolumes {
		v := &backup.Status.IncludedVolumes[i]
		if cmp.Or(v.VolumeName, v.Name) != dataDisk {
			continue
		}
		at, err := url.Parse(v.DataEndpoint)
		if err != nil {
			return nil, err
		}
		service, _, _ := strings.Cut(at.Hostname(), ".")
		var slices discoveryv1.EndpointSliceList
		if err := b.List(ctx, &slices, client.InNamespace(namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
			return nil, err
		}
		for _, s := range slices.Items {
			if len(s.Endpoints) > 0 && len(s.Endpoints[0].Addresses) > 0 && len(s.Ports) > 0 && s.Ports[0].Port != nil {
				address := net.JoinHostPort(s.Endpoints[0].Addresses[0], strconv.Itoa(int(*s.Ports[0].Port)))
				volume := endpoint.Volume{
					Name: dataDisk, Map: v.MapEndpoint, Data: v.DataEndpoint, Dialect: b.chooseDialect(), Incremental: true,
				}
				return &pulled{volume, b.endpointOptions(backup.Status.EndpointCert, address)}, nil
			}
		}
		return nil, fmt.Errorf("service %s of pull backup %s has no endpoints", service, backup.Name)
	}
	return nil, fmt.Errorf("pull backup %s does not have disk %s", backup.Name, dataDisk)
}

func (b *bench) endpointOptions(authorities, address string) endpoint.Options {
	return endpoint.Options{
		Authorities: func(context.Context) ([]byte, error) { return []byte(authorities), nil },
		Token:       func(context.Context) (string, error) { return token, nil },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		Retrying: func(err error) { b.logLine("the endpoints are asked again: %v", err) },
	}
}

// measureData reads what the guest has written at the beginning of the disk.
func (b *bench) measureData(ctx context.Context, p *pulled) error {
	first := make([]byte, dataBytes)
	for i := range b.rounds {
		for _, connections := range []int{1, 4} {
			seconds, err := p.timeReads(ctx, connections, func(*endpoint.Disk) ([]extent.Extent, error) {
				return cutPieces(extent.NewSet(extent.Extent{Length: dataBytes})), nil
			}, first)
			if err != nil {
				return err
			}
			b.addFigure(fmt.Sprintf("beside-data-%d", connections), float64(dataBytes/mib)/seconds.data)
		}
		// The guest has written the same 16 MiB again and again.
		if period := int(16 * mib); i == 0 && !bytes.Equal(first[period:], first[:len(first)-period]) {
			return errors.New("the endpoints have sent other bytes than the guest has written")
		}
	}
	return nil
}

// measureScattered reads what has changed.
func (b *bench) measureScattered(ctx context.Context, p *pulled) error {
	for range b.rounds {
		found := 0
		seconds, err := p.timeReads(ctx, 4, func(disk *endpoint.Disk) ([]extent.Extent, error) {
			changed, err := disk.Changes(ctx)
			if err != nil {
				return nil, err
			}
			pieces := cutPieces(*changed)
			found = len(pieces)
			return pieces, nil
		}, nil)
		if err != nil {
			return err
		}
		if found < extents {
			return fmt.Errorf("the map of the incremental has %d pieces, and the guest wrote %d", found, extents)
		}
		b.addFigure("beside-scattered", seconds.whole)
	}
	return nil
}

// cutPieces cuts a set into extents of at most pieceBytes.
func cutPieces(s extent.Set) (all []extent.Extent) {
	for e := range s.All() {
		for at := e.Offset; at < e.End(); at += pieceBytes {
			all = append(all, extent.Extent{Offset: at, Length: min(pieceBytes, e.End()-at)})
		}
	}
	return all
}

// timing is how long the data alone took, and the map and the data.
type timing struct{ data, whole float64 }

// timeReads opens the disk, and reads extents of it over a number of connections. to gets the bytes if it is not nil.
func (p *pulled) timeReads(
	ctx context.Context, connections int, which func(*endpoint.Disk) ([]extent.Extent, error), to []byte,
) (timing, error) {
	c := endpoint.New(p.options)
	defer c.Close()
	began := time.Now()
	disk, err := c.OpenDisk(ctx, p.volume, "bench")
	if err != nil {
		return timing{}, err
	}
	pieces, err := which(disk)
	if err != nil {
		return timing{}, err
	}
	opened := time.Now()
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range connections {
		group.Go(func() error {
			own := make([]byte, pieceBytes)
			for i := next.Add(1) - 1; i < int64(len(pieces)); i = next.Add(1) - 1 {
				e := pieces[i]
				into := own[:e.Length]
				if to != nil {
					into = to[e.Offset:e.End()]
				}
				if err := disk.ReadAt(ctx, into, e.Offset); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return timing{data: time.Since(opened).Seconds(), whole: time.Since(began).Seconds()}, err
}
