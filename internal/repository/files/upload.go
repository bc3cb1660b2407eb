package files

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"time"

	kopiaupload "github.com/kopia/kopia/snapshot/upload"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// treeName is the name of the tree in the restore point's directory.
	treeName = "files"
	// parallelAboveBytes is the length from which on a file is read in several places at once.
	parallelAboveBytes = 1 << 30
	copyBufferBytes    = 256 << 10
)

// UploadOptions are for Upload.
type UploadOptions struct {
	// Compressor is the name of one of kopia's compressors, or "".
	Compressor string
	Parallel   int
	// Previous are the roots of trees, complete or not, whose files are taken over if they look the same: name, type, size, owner,
	// permissions, time of modification.
	Previous []*snapshot.DirEntry
	// TrustedBefore is a time in nanoseconds since 1970. A file that was changed then or later (ctime) is read in any case.
	TrustedBefore int64
	// CheckpointEvery is how often Checkpoint is called, with the root of a tree of what is stored so far. Files that are not complete have
	// names there that no other file has.
	CheckpointEvery time.Duration
	Checkpoint      func(root *snapshot.DirEntry)
	// Progress is called with what was done since the call before, from several goroutines.
	Progress func(doneFiles, doneBytes int64)
	// Read is called with how many bytes were read since the call before.
	Read func(bytes int64)
}

// Uploaded is what Upload has stored.
type Uploaded struct {
	// Root is the tree. If Upload fails it has what was stored until then, or is nil.
	Root *snapshot.DirEntry
	// KeptFiles and KeptBytes were taken over from a previous tree, symbolic links among them. ReadBytes were read.
	KeptFiles, KeptBytes, ReadBytes int64
}

// upload is one call of Upload.
type upload struct {
	o      *UploadOptions
	w      repo.RepositoryWriter
	volume *volume
	// stop ends reading, while ctx lets what was read be stored.
	stop      context.Context //nolint:containedctx // it is that of the whole upload
	readBytes atomic.Int64
	progress  *uploadProgress
	zeroes    zeroObjects
	buffers   sync.Pool

	mu    sync.Mutex
	links map[string]*link
}

// Upload stores the tree in dir. It stops reading when stop ends, and what it has stored is then in Uploaded.Root; ctx ends everything.
func Upload(ctx, stop context.Context, w repo.RepositoryWriter, dir string, o UploadOptions) (out Uploaded, err error) {
	v, err := openVolume(dir)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	u := &upload{o: &o, w: w, volume: v, stop: stop, links: map[string]*link{}, zeroes: zeroObjects{w: w, byID: map[int64]object.ID{}}}
	u.buffers.New = func() any { b := make([]byte, copyBufferBytes); return &b }
	u.progress = &uploadProgress{report: o.Progress}
	root, err := u.openRoot()
	if err != nil {
		return out, err
	}
	k := kopiaupload.NewUploader(&checkpointWriter{RepositoryWriter: w, took: o.Checkpoint})
	k.Progress, k.ParallelUploads, k.DisableIgnoreRules, k.FailFast, k.EnableActions = u.progress, o.Parallel, true, true, false
	k.CheckpointInterval = min(o.CheckpointEvery, kopiaupload.DefaultCheckpointInterval)
	defer context.AfterFunc(stop, k.Cancel)()
	var previous []*snapshot.Manifest
	for _, p := range o.Previous {
		previous = append(previous, &snapshot.Manifest{RootEntry: p})
	}
	m, err := k.Upload(ctx, root, u.policy(), snapshot.SourceInfo{Host: "varve", UserName: "varve", Path: "/"}, previous...)
	if m != nil {
		out.Root = m.RootEntry
	}
	out.KeptFiles, out.KeptBytes, out.ReadBytes = u.progress.keptFiles.Load(), u.progress.keptBytes.Load(), u.readBytes.Load()
	switch {
	case stop.Err() != nil:
		return out, context.Cause(stop)
	case u.progress.failure() != nil:
		return out, u.progress.failure()
	case err != nil:
		return out, err
	case m.IncompleteReason != "":
		return out, fmt.Errorf("%w: kopia has ended the upload: %s", errclass.Transient, m.IncompleteReason)
	}
	if s := m.RootEntry.DirSummary; s != nil && s.FatalErrorCount+s.IgnoredErrorCount > 0 {
		return out, fmt.Errorf("%w: kopia left out %d files", errclass.Unknown, s.FatalErrorCount+s.IgnoredErrorCount)
	}
	return out, nil
}

func (u *upload) addRead(n int) {
	u.readBytes.Add(int64(n))
	u.o.Read(int64(n))
}

func (u *upload) openRoot() (*sourceDir, error) {
	var st unix.Stat_t
	err := u.volume.inDir(rootPath, func(fd int) (err error) {
		st, err = lstat(fd, ".")
		return err
	})
	return &sourceDir{u.entryOf(rootPath, ".", &st)}, err
}

// policy returns what kopia needs to know about each file. Nothing is left out.
func (u *upload) policy() *policy.Tree {
	no, large := policy.OptionalBool(false), policy.OptionalInt64(parallelAboveBytes)
	return policy.BuildTree(nil, &policy.Policy{
		CompressionPolicy:         policy.CompressionPolicy{CompressorName: compression.Name(u.o.Compressor)},
		MetadataCompressionPolicy: policy.MetadataCompressionPolicy{CompressorName: table.Compressor},
		ErrorHandlingPolicy:       policy.ErrorHandlingPolicy{IgnoreFileErrors: &no, IgnoreDirectoryErrors: &no, IgnoreUnknownTypes: &no},
		UploadPolicy:              policy.UploadPolicy{ParallelUploadAboveSize: &large},
	})
}

// uploadProgress hears what kopia's uploader does. It is safe for concurrent use.
type uploadProgress struct {
	kopiaupload.NullUploadProgress
	report               func(doneFiles, doneBytes int64)
	keptFiles, keptBytes atomic.Int64

	mu  sync.Mutex
	err error
}

func (p *uploadProgress) addBytes(n int64) { p.report(0, n) }

// CachedFile implements upload.Progress.
func (p *uploadProgress) CachedFile(_ string, bytes int64) {
	p.keptFiles.Add(1)
	p.keptBytes.Add(bytes)
	p.addBytes(bytes)
}

// HashedBytes implements upload.Progress.
func (p *uploadProgress) HashedBytes(n int64) { p.addBytes(n) }

// FinishedFile implements upload.Progress.
func (p *uploadProgress) FinishedFile(string, error) { p.report(1, 0) }

// Error implements upload.Progress.
func (p *uploadProgress) Error(at string, err error, _ bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = fmt.Errorf("%s: %w", path.Clean(at), err)
	}
}

func (p *uploadProgress) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// checkpointWriter keeps kopia's uploader from touching manifests. Its checkpoints are snapshots of their own, after which it applies
// the retention of the source; here they are handed over instead.
type checkpointWriter struct {
	repo.RepositoryWriter
	took func(root *snapshot.DirEntry)
}

// PutManifest implements repo.RepositoryWriter.
func (w *checkpointWriter) PutManifest(_ context.Context, _ map[string]string, payload any) (manifest.ID, error) {
	if m, ok := payload.(*snapshot.Manifest); ok {
		w.took(m.RootEntry)
	}
	return "checkpoint", nil
}

// ReplaceManifests implements repo.RepositoryWriter.
func (w *checkpointWriter) ReplaceManifests(ctx context.Context, labels map[string]string, payload any) (manifest.ID, error) {
	return w.PutManifest(ctx, labels, payload)
}

// FindManifests implements repo.RepositoryWriter. Retention finds nothing to delete.
func (w *checkpointWriter) FindManifests(context.Context, map[string]string) ([]*manifest.EntryMetadata, error) {
	return nil, nil
}

// DeleteManifest implements repo.RepositoryWriter.
func (w *checkpointWriter) DeleteManifest(context.Context, manifest.ID) error { return nil }

// Flush implements repo.RepositoryWriter. Whoever gets the checkpoint makes it durable.
func (w *checkpointWriter) Flush(context.Context) error { return nil }
