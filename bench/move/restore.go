package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/test/lab"
)

// measureRestore restores the disk to a new claim, and has qemu-img copy the machine's disk, which is as it was, to another one.
func (b *bench) measureRestore(ctx context.Context, f figures, u *upload, compare bool) error {
	b.count++
	ours, theirs := fmt.Sprintf("restored-%d", b.count), fmt.Sprintf("converted-%d", b.count)
	c, used, err := b.download(ctx, u.objects[0], ours, root.Bytes)
	if err != nil {
		return err
	}
	seconds, peerUsed, err := b.convert(ctx, theirs)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "qemu-img convert: %.1f s; %s\n", seconds, peerUsed)
	f.add("move-restore", c.seconds(), seconds, used, peerUsed)
	f.add("move-restore-data", c.dataSeconds(), seconds, nil, nil)
	if compare {
		if err := b.compareClaims(ctx, lab.ClaimName(vmName, root.Name), ours); err != nil {
			return err
		}
	}
	for _, name := range []string{ours, theirs} {
		if err := b.Delete(ctx, claimNamed(name)); err != nil {
			return err
		}
	}
	return nil
}

// convert copies the machine's disk to a new claim, with cold caches.
func (b *bench) convert(ctx context.Context, claim string) (seconds float64, u *usage, err error) {
	if err := b.Claim(ctx, claim, root.Bytes, corev1.PersistentVolumeFilesystem); err != nil {
		return 0, nil, err
	}
	source := lab.ClaimName(vmName, root.Name)
	tool, err := b.Toolbox(ctx, "convert", source, claim)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, tool.Close(context.WithoutCancel(ctx))) }()
	m, err := b.startMeter(ctx)
	if err != nil {
		return 0, nil, err
	}
	if err := dropCaches(); err != nil {
		return 0, nil, err
	}
	out, err := tool.Run(ctx, fmt.Sprintf("a=$(date +%%s%%N); qemu-img convert -U -f raw -O raw %s %s; sync -f %[2]s; b=$(date +%%s%%N); echo $((b-a))", imageOn(source), imageOn(claim)))
	u = m.stop()
	if err != nil {
		return 0, nil, err
	}
	var took time.Duration
	if _, err := fmt.Sscan(out, &took); err != nil {
		return 0, nil, fmt.Errorf("time of qemu-img %q: %w", out, err)
	}
	return took.Seconds(), u, nil
}

// compareClaims fails if the disks on two claims differ.
func (b *bench) compareClaims(ctx context.Context, claims ...string) error {
	sums := map[string]bool{}
	for _, claim := range claims {
		tool, err := b.Toolbox(ctx, "compare", claim)
		if err != nil {
			return err
		}
		out, err := tool.Run(ctx, "sha256sum "+imageOn(claim))
		if err := errors.Join(err, tool.Close(context.WithoutCancel(ctx))); err != nil {
			return err
		}
		sum, _, _ := strings.Cut(out, " ")
		sums[sum] = true
	}
	if len(sums) != 1 {
		return fmt.Errorf("the disks on %v differ", claims)
	}
	return nil
}
