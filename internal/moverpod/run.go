package moverpod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Options are what a run needs.
type Options struct {
	Job datamove.Job
	// PodName and PodUID are the pod's own.
	PodName string
	PodUID  types.UID
	// Config is how to reach the API server.
	Config *rest.Config
	Files  Files
	// Listen opens the port for the launcher of a job with a tunnel; nil: datamove.TunnelPort of all addresses.
	Listen func(context.Context) (net.Listener, error)
	// DialEndpoint connects to host:port of the endpoints of a pull backup; nil: as net.Dialer does.
	DialEndpoint func(ctx context.Context, network, address string) (net.Conn, error)
	// Log writes through Secrets, which learns the repository's secrets when they are read.
	Log     *slog.Logger
	Secrets *repositoryaccess.Secrets

	limits limits // for tests; zero: the defaults
}

// Files are the paths of what a mover pod has.
type Files struct {
	// Access is the file with the datamove.Access.
	Access string
	// Cache is a directory that outlives the container, but not the pod. The pod need not have it.
	Cache string
	// Volume is the directory of a Filesystem volume, or the device of a Block volume.
	Volume string
	// Termination gets the last error, if it exists.
	Termination string
	// TunnelToken, TunnelCertificate, TunnelKey and TunnelEnded are those of datamove.TunnelDirectory.
	TunnelToken, TunnelCertificate, TunnelKey, TunnelEnded string
	// Definition is that of datamove.TunnelDirectory or of datamove.EndpointDirectory. Its content is never logged.
	Definition string
	// EndpointToken, EndpointAuthorities and EndpointEnded are those of datamove.EndpointDirectory.
	EndpointToken, EndpointAuthorities, EndpointEnded string
	// SnapshotToken is that of datamove.SnapshotTokenDirectory.
	SnapshotToken string
}

// PodFiles returns the paths in the pod of a job.
func PodFiles(job datamove.Job) Files {
	definition := datamove.TunnelDirectory
	if job.Endpoint != nil {
		definition = datamove.EndpointDirectory
	}
	return Files{
		Access: filepath.Join(datamove.AccessDirectory, datamove.AccessKey), Cache: datamove.CacheDirectory, Volume: job.VolumePath(),
		Termination: "/dev/termination-log",
		TunnelToken: filepath.Join(datamove.TunnelDirectory, datamove.TunnelTokenKey), TunnelCertificate: filepath.Join(datamove.TunnelDirectory, datamove.TunnelCertificateKey),
		TunnelKey: filepath.Join(datamove.TunnelDirectory, datamove.TunnelPrivateKey), TunnelEnded: filepath.Join(datamove.TunnelDirectory, datamove.EndpointEndedKey),
		Definition:    filepath.Join(definition, datamove.DefinitionKey),
		EndpointToken: filepath.Join(datamove.EndpointDirectory, datamove.EndpointTokenKey), EndpointAuthorities: filepath.Join(datamove.EndpointDirectory, datamove.EndpointAuthoritiesKey),
		EndpointEnded: filepath.Join(datamove.EndpointDirectory, datamove.EndpointEndedKey),
		SnapshotToken: filepath.Join(datamove.SnapshotTokenDirectory, datamove.SnapshotTokenKey),
	}
}

// limits bound how long things take.
type limits struct {
	// start is how long a run waits for its object to be InProgress.
	start time.Duration
	// grace is how long the work may take to end once it is canceled: whoever cancels sees the report within 10 seconds. interrupted is
	// the same for a pod that is deleted, whose work is to go on in another one: the kubelet waits for 30 seconds.
	grace, interrupted time.Duration
	// report is how long a run tries to write its report.
	report time.Duration
	// progress is the shortest interval at which progress is written on the object: when another percent is done.
	// Less than that is written after smallProgress, because each write goes to all who watch the objects. logged is
	// the interval at which it goes to the log.
	progress, smallProgress, logged time.Duration
	// retry is the pause after a request that has failed.
	retry time.Duration
	// flush is how much work of an upload a death may cost.
	flush time.Duration
	// storagePause is the pause before the storage is asked again that does not answer. Pauses double up to
	// storageLongestPause.
	storagePause, storageLongestPause time.Duration
	// secret is how long a run waits for the Secret that it leaves a definition in.
	secret time.Duration
	// launcher is how long the launcher of a tunnel may be silent. Then the process ends, and is started again for as
	// long as the driver thinks that the backup lives.
	launcher time.Duration
	// ended is how often an upload from a tunnel looks whether the backup can still be read.
	ended time.Duration
	// endpoint is how long the endpoints of a pull backup may bring nothing, and endpointStall how long one connection may. An export pod
	// that is lost is replaced in that time.
	endpoint, endpointStall time.Duration
	// metadata bounds how long the SnapshotMetadata service of a driver is asked.
	metadata csichanges.Limits
}

func (l limits) withDefaults() limits {
	return limits{
		start: cmp.Or(l.start, 30*time.Minute), grace: cmp.Or(l.grace, 6*time.Second),
		interrupted: cmp.Or(l.interrupted, 24*time.Second), report: cmp.Or(l.report, 30*time.Minute),
		progress: cmp.Or(l.progress, time.Second), smallProgress: cmp.Or(l.smallProgress, 10*time.Second),
		logged: cmp.Or(l.logged, time.Minute), retry: cmp.Or(l.retry, time.Second),
		storagePause:        cmp.Or(l.storagePause, time.Second),
		storageLongestPause: cmp.Or(l.storageLongestPause, time.Minute),
		flush:               cmp.Or(l.flush, time.Minute), secret: cmp.Or(l.secret, 2*time.Minute),
		launcher: cmp.Or(l.launcher, 2*time.Minute), ended: cmp.Or(l.ended, time.Second),
		endpoint: cmp.Or(l.endpoint, 10*time.Minute), endpointStall: cmp.Or(l.endpointStall, time.Minute), metadata: l.metadata,
	}
}

// run is one life of the process.
type run struct {
	Options

	objects  *objectClient
	follower *follower
	progress *progress
	// patience is with the storage of the repository.
	patience *storage.Patience
	// far is set for a job with a tunnel.
	far *farEnd
}

// Run does the pod's work. It returns nil if it has reported, or has nothing to do, and otherwise an error that may pass: the process
// should be started again. A cancelled ctx interrupts the work without a report.
func Run(ctx context.Context, o Options) error {
	o.limits = o.limits.withDefaults()
	err := startRun(ctx, o)
	if err == nil {
		return nil
	}
	text := o.Secrets.Redact(err.Error())
	writeTermination(o.Files.Termination, text)
	return errors.New(text)
}

func startRun(ctx context.Context, o Options) error {
	if o.PodUID == "" {
		return fmt.Errorf("%s is not set: the pod does not know its own UID", datamove.PodUIDVariable)
	}
	objects, err := newObjectClient(o.Config, o.Job)
	if err != nil {
		return err
	}
	defer objects.close()
	r := &run{Options: o, objects: objects, follower: newFollower(objects, o.PodUID, o.Log, o.limits.retry)}
	r.progress = newProgress(objects, r.follower, o.Log, o.limits)
	r.patience = r.newPatience()
	o.Log.Info("mover started", "kind", o.Job.Kind, "object", o.Job.Namespace+"/"+o.Job.Name, "uid", o.Job.UID, "pod", o.PodName)

	following, stop := context.WithCancel(ctx)
	followed := make(chan struct{})
	go func() { defer close(followed); r.follower.run(following) }()
	defer func() { stop(); <-followed }()
	if o.Job.Tunnel != nil {
		if r.far, err = r.startFarEnd(ctx); err != nil {
			return err
		}
		defer func() {
			if err := r.far.close(); err != nil {
				r.Log.Warn("the end of the tunnel has failed", "error", err)
			}
		}()
	}
	return r.moveData(ctx)
}

// moveData waits for the object's start, moves the data, and reports.
func (r *run) moveData(ctx context.Context) error {
	switch err := r.awaitStart(ctx); {
	case errors.Is(err, errCanceled):
		r.Log.Info("canceled before any data was moved")
		return r.report(ctx, datamove.Report{Outcome: datamove.Canceled})
	case errors.Is(err, errOver):
		r.Log.Info("nothing to do", "why", err.Error())
		return nil
	case err != nil:
		return err
	}
	report, err := r.work(ctx)
	var lasts *lastingError
	switch {
	case errors.Is(err, errCanceled):
		r.Log.Info("canceled: what was stored is collected, and what was written is discarded, by others")
		return r.report(ctx, datamove.Report{Outcome: datamove.Canceled})
	case errors.Is(err, errOver):
		r.Log.Info("the work was stopped", "why", err.Error())
		return nil
	case errors.As(err, &lasts):
		text := r.Secrets.Redact(lasts.Error())
		r.Log.Error("failed, and would fail again", "error", text)
		writeTermination(r.Files.Termination, text)
		return r.report(ctx, datamove.Report{Outcome: datamove.Failed, Message: shorten(text)})
	case err != nil:
		return err
	}
	report.Outcome = datamove.Succeeded
	return r.report(ctx, report)
}

// awaitStart returns when the object is InProgress.
func (r *run) awaitStart(ctx context.Context) error {
	timer := time.NewTimer(r.limits.start)
	defer timer.Stop()
	select {
	case <-r.follower.over:
		return r.follower.overError()
	case <-r.follower.canceled:
		return errCanceled
	case <-r.follower.started:
	case <-timer.C:
		return fmt.Errorf("%s %s/%s is not InProgress after %s: nobody has started it%s", r.Job.Kind, r.Job.Namespace, r.Job.Name, r.limits.start, r.follower.lastFailure())
	case <-ctx.Done():
		return fmt.Errorf("interrupted before the start: %w", context.Cause(ctx))
	}
	// Both may be true, and select takes either.
	select {
	case <-r.follower.over:
		return r.follower.overError()
	case <-r.follower.canceled:
		return errCanceled
	default:
		return nil
	}
}

// errCanceled: spec.cancel is set, or the object is being deleted.
var errCanceled = errors.New("canceled")

// work moves the data. If it has to stop, it does so within the grace. Then the work may still go on, and the process
// has to end. Work that has succeeded before it could be stopped has succeeded: its restore point is published, and
// has to have an owner.
func (r *run) work(ctx context.Context) (datamove.Report, error) {
	type result struct {
		report datamove.Report
		err    error
	}
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	writing, dropRequests := context.WithCancel(ctx)
	defer dropRequests()
	stopProgress := r.progress.start(writing)
	defer stopProgress()
	done, closed := make(chan result, 1), make(chan struct{})
	go func() {
		defer close(closed)
		r.move(inner, func(report datamove.Report, err error) { done <- result{report, err} })
	}()
	var reason error
	grace := r.limits.grace
	select {
	case d := <-done:
		<-closed
		stopProgress()
		r.progress.write(ctx)
		return d.report, d.err
	case <-r.follower.canceled:
		reason = errCanceled
	case <-r.follower.over:
		reason = r.follower.overError()
	case <-ctx.Done():
		reason, grace = fmt.Errorf("interrupted: %w", context.Cause(ctx)), r.limits.interrupted
	}
	r.Log.Info("stopping", "why", reason.Error())
	stop(reason)
	dropRequests()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		r.Log.Warn("the work does not end, and dies with this process", "waited", grace)
	}
	select {
	case d := <-done:
		if d.err == nil {
			r.Log.Info("it has succeeded before it could be stopped")
			return d.report, nil
		}
	default:
	}
	return datamove.Report{}, reason
}

// move does the work of the object's kind. It calls done with the result before it lets go of the repository.
func (r *run) move(ctx context.Context, done func(datamove.Report, error)) {
	if r.Job.VolumeMode == "" && r.Job.Tunnel == nil && r.Job.Endpoint == nil && !r.Job.ReadDefinition {
		done(datamove.Report{}, lasting(errors.New("the job has no volume"),
			"the controller and the mover must be of the same version of Varve"))
		return
	}
	repo, err := r.openRepository(ctx)
	if err != nil {
		done(datamove.Report{}, err)
		return
	}
	defer func() {
		if err := repo.Close(context.WithoutCancel(ctx)); err != nil {
			r.Log.Warn("the repository was not closed", "error", err)
		}
	}()
	if r.Job.Kind == datamove.Upload {
		done(r.upload(ctx, repo))
	} else {
		done(r.download(ctx, repo))
	}
}

// warn logs what does not fail the work.
func (r *run) warn(err error) { r.Log.Warn(err.Error()) }

// writeTermination leaves an error where the kubelet finds it.
func writeTermination(path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return // Nobody asked for it.
	}
	_, _ = f.WriteString(shorten(text)) // The log has it, too.
	_ = f.Close()
}

// maxMessageBytes bounds a report's message: it is in an annotation, and in status.message.
const maxMessageBytes = 2 << 10

// shorten returns the beginning of a text that is too long.
func shorten(text string) string { return shortenTo(text, maxMessageBytes) }

// shortenTo returns at most limit bytes of a text, and a sign that more follows.
func shortenTo(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return reconcile.CutText(text, limit) + "…"
}
