package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/varvebackup/varve/test/lab"
)

// raw is the claim with the peer's copy of the disk, as a device.
const raw = "raw"

// peer is velerolike in a toolbox, with a repository that is empty at first.
type peer struct {
	*bench

	tool   *lab.Toolbox
	prefix string
}

// peerRun is what velerolike says about a backup, and what its processes and the S3 service have used.
type peerRun struct {
	Seconds, CPUSeconds, MemoryMiB float64
	Bytes                          int64
	usage                          *usage
}

// openPeer makes the repository.
func (b *bench) openPeer(ctx context.Context, tool *lab.Toolbox) (*peer, error) {
	b.count++
	p := &peer{bench: b, tool: tool, prefix: fmt.Sprintf("%s-peer-%d/", namespace, b.count)}
	if err := b.empty(ctx, p.prefix); err != nil { // of a run that was killed
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"Endpoint": b.store.Address, "Region": b.store.Region, "Bucket": b.store.Bucket, "Prefix": p.prefix,
		"AccessKey": b.store.AccessKey, "SecretKey": b.store.SecretKey, "RootCA": b.store.Authority,
	})
	if err != nil {
		return nil, err
	}
	_, err = tool.RunWithInput(ctx, "umask 077; cat >/tmp/config; /tmp/"+veleroLike+" /tmp/config create", bytes.NewReader(config))
	return p, err
}

// backup copies the machine's disk as it is to the device, and moves that into the repository, with cold caches.
func (p *peer) backup(ctx context.Context, what string) (*peerRun, error) {
	if _, err := p.tool.Run(ctx, fmt.Sprintf("qemu-img convert -U -n -f raw -O raw %s /dev/%s; sync", imageOn(lab.ClaimName(vmName, root.Name)), raw)); err != nil {
		return nil, err
	}
	m, err := p.startMeter(ctx)
	if err != nil {
		return nil, err
	}
	if err := dropCaches(); err != nil {
		return nil, err
	}
	out, err := p.tool.Run(ctx, "/tmp/"+veleroLike+" /tmp/config backup /dev/"+raw)
	used := m.stop()
	if err != nil {
		return nil, err
	}
	r := &peerRun{usage: used}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		return nil, fmt.Errorf("%s says %q: %w", veleroLike, out, err)
	}
	if r.Bytes != diskBytes {
		return nil, fmt.Errorf("%s has read %d bytes of %d", veleroLike, r.Bytes, diskBytes)
	}
	fmt.Fprintf(p.log, "%s, peer: %.1f s, %.0f MiB; %s\n", what, r.Seconds, r.MemoryMiB, used)
	return r, nil
}

// close removes what is stored.
func (p *peer) close(ctx context.Context) error { return p.empty(ctx, p.prefix) }
