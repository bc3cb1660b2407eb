package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/virtualfs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/upload"
)

// partBytes is above which Velero has kopia read parts of a file side by side. A device is no such file.
const partBytes = 2 << 30

// source is the history of the device.
var source = snapshot.SourceInfo{UserName: user, Host: host, Path: "/snapshot-data-upload-download/kopia/bench/disk"}

// backup makes a snapshot of a device.
func backup(ctx context.Context, c *Config, dir, device string) (_ *Result, err error) {
	rep, err := open(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rep.Close(ctx)) }()
	ctx, w, err := rep.NewWriter(ctx, repo.WriteSessionOptions{Purpose: "velerolike"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	manifest, err := makeSnapshot(ctx, w, virtualfs.NewStaticDirectory(device, []fs.Entry{virtualfs.StreamingFileFromReader(device, f)}))
	if err != nil {
		return nil, err
	}
	return &Result{Snapshot: string(manifest.ID), Bytes: manifest.Stats.TotalFileSize}, nil
}

// makeSnapshot does what SnapshotSource of Velero's does.
func makeSnapshot(ctx context.Context, w repo.RepositoryWriter, root fs.Entry) (*snapshot.Manifest, error) {
	previous, err := lastSnapshot(ctx, w)
	if err != nil {
		return nil, err
	}
	tree, err := setPolicy(ctx, w)
	if err != nil {
		return nil, err
	}
	u := upload.NewUploader(w)
	u.FailFast = true
	manifest, err := u.Upload(ctx, root, tree, source, previous...)
	if err != nil {
		return nil, err
	}
	if summary := manifest.RootEntry.DirSummary; summary != nil && summary.FatalErrorCount+summary.IgnoredErrorCount > 0 {
		return nil, fmt.Errorf("not all was read: %+v", summary.FailedEntries)
	}
	manifest.Pins = []string{"velero-pin"}
	if _, err := snapshot.SaveSnapshot(ctx, w, manifest); err != nil {
		return nil, err
	}
	if _, err := policy.ApplyRetentionPolicy(ctx, w, source, true); err != nil {
		return nil, err
	}
	return manifest, w.Flush(ctx)
}

// lastSnapshot returns the parent, if there is one.
func lastSnapshot(ctx context.Context, w repo.RepositoryWriter) ([]*snapshot.Manifest, error) {
	all, err := snapshot.ListSnapshots(ctx, w, source)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	last := all[0]
	for _, m := range all {
		if m.StartTime.After(last.StartTime) {
			last = m
		}
	}
	return []*snapshot.Manifest{last}, nil
}

// setPolicy stores the policy, because kopia reads it from the repository, and returns it.
func setPolicy(ctx context.Context, w repo.RepositoryWriter) (*policy.Tree, error) {
	all, manual, ignore := policy.OptionalInt(math.MaxInt32), true, policy.OptionalBool(true)
	reads, parts := policy.OptionalInt(runtime.NumCPU()), policy.OptionalInt64(partBytes)
	p := &policy.Policy{
		RetentionPolicy:     policy.RetentionPolicy{KeepLatest: &all, KeepAnnual: &all, KeepDaily: &all, KeepHourly: &all, KeepMonthly: &all, KeepWeekly: &all},
		CompressionPolicy:   policy.CompressionPolicy{CompressorName: "none"},
		UploadPolicy:        policy.UploadPolicy{MaxParallelFileReads: &reads, ParallelUploadAboveSize: &parts},
		SchedulingPolicy:    policy.SchedulingPolicy{Manual: manual},
		ErrorHandlingPolicy: policy.ErrorHandlingPolicy{IgnoreUnknownTypes: &ignore},
	}
	if err := policy.SetPolicy(ctx, w, source, p); err != nil {
		return nil, err
	}
	if err := w.Flush(ctx); err != nil {
		return nil, err
	}
	return policy.TreeForSource(ctx, w, source)
}
